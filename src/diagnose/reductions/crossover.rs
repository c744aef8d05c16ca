//! The fastest proven algorithm at each size, and the sizes between which it changes. Two are told apart only where the middle
//! halves of their samples do not overlap; as long as the former fastest is not slower by that measure, nothing changes.

use super::{
    Doubt, NCCL, NCCL_P2P_OFF, NCCL_P2P_SYS, Standing, amount, comparable, doubts, is_nccl, middle,
    standing,
};
use crate::model::{
    crossover::{Change, Crossover, Fastest},
    reduction::{Arrangement, Reduction},
};
use std::collections::BTreeSet;

/// One for each group of ranks, type and way of launching that has a proven time.
pub fn crossovers(rows: &[Reduction]) -> Vec<Crossover> {
    let sick: BTreeSet<usize> = doubts(rows).into_iter().map(|d| d.row).collect();
    let mut firsts: Vec<&Reduction> = Vec::new();
    for row in rows {
        if !firsts.iter().any(|first| comparable(first, row)) {
            firsts.push(row);
        }
    }
    let all = firsts.into_iter().map(|first| {
        let own = rows.iter().enumerate();
        let own: Vec<(usize, &Reduction)> = own.filter(|(_, r)| comparable(first, r)).collect();
        of(rows, first, &own, &sick)
    });
    all.filter(|crossover| !crossover.sizes.is_empty())
        .collect()
}

fn of(
    rows: &[Reduction],
    first: &Reduction,
    own: &[(usize, &Reduction)],
    sick: &BTreeSet<usize>,
) -> Crossover {
    let proven: Vec<(usize, &Reduction)> = own
        .iter()
        .filter(|(_, row)| standing(rows, row) == Standing::Proven && middle(row).is_some())
        .copied()
        .collect();
    let bytes: BTreeSet<u64> = proven.iter().map(|(_, row)| row.bytes).collect();
    let sizes: Vec<Fastest> = bytes
        .into_iter()
        .filter_map(|bytes| fastest(bytes, &proven, sick))
        .collect();
    let changes = changes(&sizes);
    let doubted: Vec<(&Reduction, Doubt)> = doubts(rows)
        .into_iter()
        .filter_map(|doubt| {
            let (_, row) = own.iter().find(|(at, _)| *at == doubt.row)?;
            Some((*row, doubt))
        })
        .collect();
    let doubts = doubted
        .iter()
        .map(|(row, doubt)| format!("{}: {}", row.algorithm, doubt.says))
        .collect();
    let crosses_links = matches!(
        first.arrangement,
        Arrangement::OneProcess | Arrangement::ProcessPerGpu
    );
    let mut crossover = Crossover {
        gpus: first.gpus.clone(),
        arrangement: first.arrangement,
        dtype: first.dtype,
        in_place: first.in_place,
        launch: first.launch,
        sizes,
        changes,
        doubts,
        advice: Vec::new(),
    };
    if crosses_links {
        let odd = Odd {
            nccl: doubted.iter().any(|(row, _)| is_nccl(row)),
            own: doubted.iter().any(|(row, _)| !is_nccl(row)),
        };
        crossover.advice = advice(&crossover, &proven, odd);
    }
    crossover
}

fn fastest(bytes: u64, proven: &[(usize, &Reduction)], sick: &BTreeSet<usize>) -> Option<Fastest> {
    let here: Vec<(usize, &Reduction, (f64, f64, f64))> = proven
        .iter()
        .filter(|(_, row)| row.bytes == bytes)
        .filter_map(|(at, row)| Some((*at, *row, middle(row)?)))
        .collect();
    let (_, first, (_, _, high)) = here.iter().min_by(|a, b| a.2.0.total_cmp(&b.2.0))?;
    let level: Vec<&str> = here
        .iter()
        .filter(|(_, other, (_, low, _))| other.algorithm == first.algorithm || low <= high)
        .map(|(_, other, _)| other.algorithm.as_str())
        .collect();
    // NCCL is what runs without doing anything: it is left only for something that is clearly faster.
    let name = match level.contains(&NCCL) {
        true => NCCL,
        false => first.algorithm.as_str(),
    };
    let (_, row, (median, ..)) = here.iter().find(|(_, row, _)| row.algorithm == name)?;
    let tied = level.iter().filter(|other| **other != name);
    let base = here
        .iter()
        .find(|(at, other, _)| other.algorithm == NCCL && !sick.contains(at));
    Some(Fastest {
        bytes,
        algorithm: row.algorithm.clone(),
        microseconds: *median,
        tied: tied.map(|other| (*other).to_string()).collect(),
        against_nccl: base.map(|(_, _, (nccl, ..))| nccl / median),
    })
}

/// Runs of sizes over which one algorithm is never slower than the fastest: its name, and its first and last size.
fn runs(sizes: &[Fastest]) -> Vec<(&str, u64, u64)> {
    let mut runs: Vec<(&str, u64, u64)> = Vec::new();
    for size in sizes {
        match runs.last_mut() {
            Some((name, _, last))
                if size.algorithm == *name || size.tied.iter().any(|tied| tied == name) =>
            {
                *last = size.bytes;
            }
            _ => runs.push((&size.algorithm, size.bytes, size.bytes)),
        }
    }
    runs
}

fn changes(sizes: &[Fastest]) -> Vec<Change> {
    let runs = runs(sizes);
    let pairs = runs.iter().zip(runs.iter().skip(1));
    pairs
        .map(|((from, _, last), (to, first, _))| Change {
            from: (*from).to_string(),
            to: (*to).to_string(),
            last_bytes: *last,
            first_bytes: *first,
        })
        .collect()
}

/// "from 8 KiB to 256 KiB", "at 8 KiB".
fn span(first: u64, last: u64) -> String {
    match first == last {
        true => format!("at {}", amount(first)),
        false => format!("from {} to {}", amount(first), amount(last)),
    }
}

/// Whose times are odd.
#[derive(Debug, Clone, Copy)]
struct Odd {
    /// NCCL's: no ratio to them means anything.
    nccl: bool,
    /// Those of algorithms of our own: nothing is chosen by them.
    own: bool,
}

fn advice(crossover: &Crossover, proven: &[(usize, &Reduction)], odd: Odd) -> Vec<String> {
    let mut says = Vec::new();
    for (name, first, last) in runs(&crossover.sizes) {
        let within: Vec<&Fastest> = crossover
            .sizes
            .iter()
            .filter(|s| s.bytes >= first && s.bytes <= last)
            .collect();
        let clear = within.iter().filter(|s| s.algorithm == name);
        let ratios: Vec<(u64, f64)> = clear
            .filter_map(|s| Some((s.bytes, s.against_nccl?)))
            .collect();
        let (least, most) = ratios
            .iter()
            .fold((f64::INFINITY, 0.0_f64), |(l, m), (_, r)| {
                (l.min(*r), m.max(*r))
            });
        // Of sizes at which it is level with another the ratio is the other's.
        let of = match (ratios.first(), ratios.last()) {
            (Some((from, _)), Some((to, _))) if ratios.len() < within.len() => {
                format!(" {}", span(*from, *to))
            }
            _ => String::new(),
        };
        let mut against = match (name, ratios.len()) {
            (NCCL, _) | (_, 0) => String::new(),
            (_, 1) => format!(", {most:.1} times as fast as NCCL{of}"),
            _ => format!(", {least:.1} to {most:.1} times as fast as NCCL{of}"),
        };
        let level: BTreeSet<&str> = within
            .iter()
            .flat_map(|s| s.tied.iter().chain([&s.algorithm]))
            .map(String::as_str)
            // Which of two kernels of ours it is matters less than whether NCCL, which costs nothing, is as good.
            .filter(|other| *other != name && (name == NCCL || *other == NCCL))
            .collect();
        if !level.is_empty() {
            let level: Vec<&str> = level.into_iter().collect();
            against.push_str(&format!(
                ", at some size not told apart from {}",
                level.join(", ")
            ));
        }
        let ours = match proven
            .iter()
            .any(|(_, r)| r.algorithm == name && is_nccl(r))
        {
            true => "",
            false => " (this tool's own kernel; an engine's may differ)",
        };
        says.push(format!(
            "{name} is the fastest proven {}{against}{ours}",
            span(first, last)
        ));
    }
    let beats =
        |other: &str| -> Vec<u64> {
            let clear = proven.iter().filter(|(_, row)| row.algorithm == other).filter(|(_, row)| {
            let base = proven.iter().find(|(_, r)| r.algorithm == NCCL && r.bytes == row.bytes);
            let base = base.and_then(|(_, r)| middle(r));
            matches!((middle(row), base), (Some((_, _, high)), Some((_, low, _))) if high < low)
        });
            clear.map(|(_, row)| row.bytes).collect()
        };
    for (other, setting) in [
        (NCCL_P2P_SYS, "NCCL_P2P_LEVEL=SYS"),
        (NCCL_P2P_OFF, "NCCL_P2P_DISABLE=1"),
    ] {
        let mut sizes = beats(other);
        sizes.sort_unstable();
        if let (Some(first), Some(last)) = (sizes.first(), sizes.last()) {
            let what = match sizes.len() as u64 {
                1 => span(*first, *last),
                n => format!("at {n} sizes {}", span(*first, *last)),
            };
            says.push(format!("with {setting} NCCL itself is faster {what}"));
        }
    }
    if odd.own {
        says.push(
            "measure again what took longer than a larger vector: until then no choice rests on it"
                .to_string(),
        );
    }
    if odd.nccl {
        says.push("no ratio to NCCL is given where its own times are sick".to_string());
    }
    says
}

#[cfg(test)]
mod tests {
    use super::{super::sample::row, *};
    use crate::model::case::Outcome;

    fn rows(list: &[(&str, &[(u64, f64)])]) -> Vec<Reduction> {
        list.iter()
            .flat_map(|(name, times)| times.iter().map(|(kib, us)| row(name, 2, kib << 10, *us)))
            .collect()
    }

    #[test]
    fn the_fastest_changes_between_measured_sizes() {
        let all = rows(&[
            (
                "one-shot-push",
                &[(8, 3.0), (64, 3.5), (256, 5.0), (1024, 24.0)],
            ),
            ("two-shot", &[(8, 5.0), (64, 5.2), (256, 5.05), (1024, 9.0)]),
            ("nccl", &[(8, 8.9), (64, 10.2), (256, 11.0), (1024, 17.0)]),
        ]);
        let crossover = crossovers(&all).remove(0);
        let names: Vec<&str> = crossover
            .sizes
            .iter()
            .map(|s| s.algorithm.as_str())
            .collect();
        assert_eq!(
            names,
            [
                "one-shot-push",
                "one-shot-push",
                "one-shot-push",
                "two-shot"
            ]
        );
        // 1% apart with overlapping samples: no difference.
        assert_eq!(crossover.sizes[2].tied, ["two-shot"]);
        assert_eq!(
            crossover.changes,
            [Change {
                from: "one-shot-push".to_string(),
                to: "two-shot".to_string(),
                last_bytes: 256 << 10,
                first_bytes: 1 << 20,
            }]
        );
        assert_eq!(
            crossover.advice,
            [
                "one-shot-push is the fastest proven from 8 KiB to 256 KiB, 2.2 to 3.0 times as fast as NCCL (this tool's own kernel; an engine's may differ)",
                "two-shot is the fastest proven at 1 MiB, 1.9 times as fast as NCCL (this tool's own kernel; an engine's may differ)",
            ]
        );
    }

    #[test]
    fn a_tie_changes_nothing() {
        let all = rows(&[
            ("a", &[(8, 3.00), (64, 3.51), (256, 5.0)]),
            ("b", &[(8, 4.00), (64, 3.50), (256, 5.01)]),
        ]);
        let crossover = crossovers(&all).remove(0);
        assert_eq!(crossover.sizes[1].algorithm, "b");
        assert!(crossover.changes.is_empty());
        // Level with NCCL is no reason to leave it.
        let all = rows(&[("nccl-p2p-off", &[(8, 9.0)]), ("nccl", &[(8, 9.05)])]);
        let crossover = crossovers(&all).remove(0);
        assert_eq!(crossover.sizes[0].algorithm, "nccl");
        assert_eq!(crossover.sizes[0].tied, ["nccl-p2p-off"]);
    }

    #[test]
    fn what_is_not_proven_wins_nothing() {
        let mut all = rows(&[("one-shot-push", &[(8, 3.0)]), ("nccl", &[(8, 9.0)])]);
        all[0].outcome = Outcome::TimedOut { after_ms: 1 };
        let crossover = crossovers(&all).remove(0);
        assert_eq!(crossover.sizes[0].algorithm, "nccl");
        assert_eq!(crossover.advice, ["nccl is the fastest proven at 8 KiB"]);
        all[1].calls = 0;
        assert!(crossovers(&all).is_empty());
        // NCCL beside a control that hangs is not proven either.
        let mut all = rows(&[("nccl", &[(8, 9.0)]), ("nccl-p2p-off", &[(8, 9.0)])]);
        all[1].outcome = Outcome::TimedOut { after_ms: 1 };
        assert!(crossovers(&all).is_empty());
    }

    #[test]
    fn a_sick_baseline_gives_no_ratio() {
        let mut all = rows(&[("one-shot-push", &[(12, 8.0)]), ("nccl", &[(12, 205.0)])]);
        let crossover = crossovers(&all).remove(0);
        assert_eq!(crossover.sizes[0].against_nccl, None);
        assert_eq!(crossover.doubts.len(), 1);
        assert!(
            crossover
                .advice
                .iter()
                .all(|a| !a.contains("times as fast"))
        );
        assert!(crossover.advice.iter().any(|a| a.contains("no ratio")));
        all[1] = row("nccl", 2, 12 << 10, 9.0);
        assert!(crossovers(&all)[0].sizes[0].against_nccl.is_some());
    }

    #[test]
    fn a_setting_of_nccl_that_helps_is_named() {
        let all = rows(&[
            ("nccl", &[(8, 25.0), (64, 28.0)]),
            ("nccl-p2p-sys", &[(8, 12.0), (64, 14.0)]),
        ]);
        let advice = crossovers(&all).remove(0).advice;
        assert!(
            advice.contains(
                &"with NCCL_P2P_LEVEL=SYS NCCL itself is faster at 2 sizes from 8 KiB to 64 KiB"
                    .to_string()
            ),
            "{advice:?}"
        );
    }

    #[test]
    fn ranks_on_one_gpu_give_no_advice() {
        let mut all = rows(&[("one-shot-push", &[(8, 3.0)])]);
        all[0].arrangement = Arrangement::StreamsOfOneGpu;
        let crossover = crossovers(&all).remove(0);
        assert_eq!(crossover.sizes.len(), 1);
        assert!(crossover.advice.is_empty());
    }

    #[test]
    fn groups_and_types_are_kept_apart() {
        let mut all = rows(&[("a", &[(8, 3.0)]), ("b", &[(8, 2.0)])]);
        all[1].gpus = vec![1, 0];
        assert_eq!(crossovers(&all).len(), 2);
    }
}
