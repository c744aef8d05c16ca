//! Whether NCCL's own times are sane, before anybody divides by them. A published comparison rested on a host on which NCCL took
//! 205 us for 12 KiB over 8 ranks where 50 to 60 are usual: the prefill-sized workspace of FlashInfer's kernel looked best there,
//! and is worst elsewhere (sgl-project/sglang#34528).
//!
//! Three rules, each of which names what is odd:
//! - **floor**: an all-reduce takes 2(n-1) steps of latency and moves 2(n-1)/n of its bytes; a time above [`MULTIPLE`] times that
//!   is sick. Latency of a step: [`STEP_US`]. Rate: the best that the same arm reached at any size, and at least [`LEAST_RATE`].
//!   What a host thread takes to launch comes on top where calls are not a graph;
//! - **order**: a smaller vector that takes clearly longer than one at least twice as large;
//! - **peers**: NCCL with P2P clearly slower than without, at the same size.
//!
//! Times of our own algorithms are held to the order alone: they have no expectation beside it.

use super::{
    NCCL, NCCL_P2P_OFF, NCCL_P2P_SYS, Standing, amount, comparable, is_nccl, middle, standing,
};
use crate::model::reduction::{Arrangement, Launch, Reduction};

/// Latency of one step, microseconds: two H200 on NVLink take 8.9 us for 8 KiB in two steps (NCCL 2.28, measured); eight RTX PRO
/// 6000 about 60 us for 12 KiB in fourteen (sgl-project/sglang#34528), 4.3 us a step.
const STEP_US: f64 = 4.4;
/// Above so many times the floor a time is sick: shared memory instead of peers costs less than twice (14.4 us for 8 KiB on the
/// H200 above), and 205 us is 3.3 times the floor of its eight ranks.
const MULTIPLE: f64 = 3.0;
/// The arm's best rate is taken as at least this, bytes a microsecond: a row that stands alone, or a curve that is slow as a whole,
/// must not excuse itself. Shared memory reaches twice as much on PCIe 4 (9.5 GB/s and more staged).
const LEAST_RATE: f64 = 5000.0;
/// Host time of one launch on one rank, microseconds. Assumed: a few for a kernel, and NCCL's own bookkeeping.
const LAUNCH_US: f64 = 10.0;
/// A smaller vector may take longer by this factor where NCCL changes its protocol.
const DISORDER: f64 = 1.25;
/// The same for algorithms of our own, which change kernels by size: two kernels that meet at a size are about as fast there.
const OWN_DISORDER: f64 = 2.0;
/// Peers may lose by this factor to shared memory before that is odd.
const PEER_LOSS: f64 = 1.25;
/// First words of the note that [`flag`] leaves.
const NOTE: &str = "sick baseline: ";
/// The same where the time is our own.
const OWN_NOTE: &str = "odd time: ";

/// Something odd about a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Doubt {
    /// Its row.
    pub row: usize,
    /// What is odd.
    pub says: String,
}

/// What is odd about the times of `rows`; empty where they are sane, and where there are none.
pub fn doubts(rows: &[Reduction]) -> Vec<Doubt> {
    let mut all = Vec::new();
    for (at, row) in rows.iter().enumerate() {
        let arm: Vec<&Reduction> = rows
            .iter()
            .filter(|r| r.algorithm == row.algorithm && comparable(r, row))
            .collect();
        let found = match is_nccl(row) {
            true => [
                floor(row, &arm),
                order(row, &arm, DISORDER),
                peers(row, rows),
            ],
            false => [order(row, &arm, OWN_DISORDER), None, None],
        };
        all.extend(
            found
                .into_iter()
                .flatten()
                .map(|says| Doubt { row: at, says }),
        );
    }
    all
}

/// Notes the doubts in their rows, and which results of NCCL's a failed control takes the meaning from. What a row says already
/// is not said twice.
pub fn flag(rows: &mut [Reduction]) {
    let doubts = doubts(rows);
    let mut notes: Vec<(usize, String)> = doubts
        .into_iter()
        .map(|doubt| {
            let nccl = rows.get(doubt.row).is_some_and(is_nccl);
            let note = if nccl { NOTE } else { OWN_NOTE };
            (doubt.row, format!("{note}{}", doubt.says))
        })
        .collect();
    for (at, row) in rows.iter().enumerate() {
        if let Standing::Inconclusive(why) = standing(rows, row) {
            notes.push((at, format!("inconclusive: {why}")));
        }
    }
    for (at, note) in notes {
        if let Some(row) = rows.get_mut(at)
            && !row.notes.contains(&note)
        {
            row.notes.push(note);
        }
    }
}

/// Bytes a microsecond that cross each rank's links.
fn rate(row: &Reduction) -> Option<f64> {
    middle(row).map(|(median, ..)| share(row) / median)
}

/// Bytes that cross each rank's links: 2(n-1)/n of the vector.
fn share(row: &Reduction) -> f64 {
    let n = f64::from(row.ranks().max(1));
    2.0 * (n - 1.0) / n * row.bytes as f64
}

fn floor(row: &Reduction, arm: &[&Reduction]) -> Option<String> {
    let (median, ..) = middle(row)?;
    let steps = f64::from(2 * row.ranks().saturating_sub(1));
    let best = arm
        .iter()
        .filter_map(|r| rate(r))
        .fold(LEAST_RATE, f64::max);
    let launches = match (row.launch, row.arrangement) {
        (Launch::Graph, _) => 0.0,
        (Launch::Eager, Arrangement::ProcessPerGpu) => 1.0,
        (Launch::Eager, _) => f64::from(row.ranks()),
    };
    let floor = steps * STEP_US + share(row) / best + launches * LAUNCH_US;
    (median > MULTIPLE * floor).then(|| {
        format!(
            "{} take {median:.0} us, {:.1} times the {floor:.0} us that {steps:.0} steps of {STEP_US} us and the bytes come to",
            amount(row.bytes),
            median / floor
        )
    })
}

fn order(row: &Reduction, arm: &[&Reduction], factor: f64) -> Option<String> {
    let (median, low, _) = middle(row)?;
    let larger = arm.iter().filter(|r| r.bytes >= 2 * row.bytes);
    let faster = larger.filter_map(|r| {
        let (other, _, high) = middle(r)?;
        (median > factor * other && low > high).then_some((r.bytes, other))
    });
    let (bytes, other) = faster.min_by(|a, b| a.1.total_cmp(&b.1))?;
    Some(format!(
        "{} take {median:.1} us and {} only {other:.1} us",
        amount(row.bytes),
        amount(bytes)
    ))
}

fn peers(row: &Reduction, rows: &[Reduction]) -> Option<String> {
    if !matches!(row.algorithm.as_str(), NCCL | NCCL_P2P_SYS) {
        return None;
    }
    let (median, low, _) = middle(row)?;
    let control = rows.iter().find(|other| {
        other.algorithm == NCCL_P2P_OFF && other.bytes == row.bytes && comparable(other, row)
    })?;
    let (without, _, high) = middle(control)?;
    let peer = row.transport.as_ref().is_none_or(|t| t.contains("P2P"));
    (peer && median > PEER_LOSS * without && low > high).then(|| {
        format!(
            "{} take {median:.1} us with P2P and {without:.1} us without",
            amount(row.bytes)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::{super::sample::row, *};

    fn says(rows: &[Reduction]) -> Vec<String> {
        doubts(rows).into_iter().map(|d| d.says).collect()
    }

    fn curve(algorithm: &str, ranks: u32, times: &[(u64, f64)]) -> Vec<Reduction> {
        let rows = times
            .iter()
            .map(|(kib, us)| row(algorithm, ranks, kib << 10, *us));
        rows.collect()
    }

    /// One late call once kept all calls of a row late: 660 us at 256 KiB where 1 MiB took 8 (docs/hardware-log.md).
    #[test]
    fn a_time_of_our_own_above_that_of_a_larger_vector_is_odd() {
        let slow = curve("one-shot-push", 2, &[(64, 3.3), (256, 659.6), (1024, 8.1)]);
        assert_eq!(says(&slow), ["256 KiB take 659.6 us and 1 MiB only 8.1 us"]);
        let mut noted = slow.clone();
        flag(&mut noted);
        assert!(noted[1].notes.iter().any(|note| note.starts_with(OWN_NOTE)));
        let kernels_meet = curve("one-shot-push", 2, &[(256, 12.0), (512, 8.1)]);
        assert!(says(&kernels_meet).is_empty());
    }

    /// NCCL 2.28.3 on two H200 (docs/hardware-log.md has how): with P2P and without.
    const H200: [(u64, f64); 8] = [
        (4, 8.9),
        (8, 8.9),
        (64, 10.2),
        (256, 11.0),
        (768, 14.9),
        (1024, 17.0),
        (4096, 35.1),
        (16_384, 78.0),
    ];
    const H200_SHM: [(u64, f64); 7] = [
        (4, 13.9),
        (8, 14.4),
        (64, 18.8),
        (256, 38.7),
        (768, 57.8),
        (1024, 66.6),
        (4096, 172.0),
    ];

    #[test]
    fn a_healthy_host_raises_no_doubt() {
        let mut rows = curve("nccl", 2, &H200);
        rows.extend(curve("nccl-p2p-off", 2, &H200_SHM));
        assert_eq!(says(&rows), [""; 0]);
        // Eight ranks on PCIe, as published for a sound host.
        let pcie = [(12, 55.0), (96, 70.0), (768, 160.0), (16_384, 1900.0)];
        assert_eq!(says(&curve("nccl", 8, &pcie)), [""; 0]);
        // Shared memory between four.
        assert_eq!(
            says(&curve("nccl", 4, &[(8, 30.0), (16_384, 974.0)])),
            [""; 0]
        );
    }

    #[test]
    fn the_published_sick_baseline_is_named() {
        let sick = [(12, 205.0), (96, 220.0), (768, 320.0), (16_384, 2100.0)];
        let says = says(&curve("nccl", 8, &sick));
        assert!(says[0].starts_with("12 KiB take 205 us, 3."), "{says:?}");
        // It does not take a curve to see it.
        assert_eq!(doubts(&curve("nccl", 8, &[(12, 205.0)])).len(), 1);
    }

    #[test]
    fn our_own_kernels_are_no_baseline() {
        assert_eq!(doubts(&curve("one-shot-push", 8, &[(12, 900.0)])), []);
    }

    #[test]
    fn launching_call_by_call_takes_the_hosts_time_too() {
        let mut rows = curve("nccl", 8, &[(8, 300.0)]);
        rows[0].launch = Launch::Eager;
        assert_eq!(doubts(&rows).len(), 1);
        rows[0].arrangement = Arrangement::OneProcess;
        assert_eq!(doubts(&rows), []);
    }

    #[test]
    fn a_curve_that_falls_is_odd_and_a_small_step_is_not() {
        let says = says(&curve(
            "nccl",
            2,
            &[(8, 9.0), (32, 25.0), (64, 10.0), (1024, 17.0)],
        ));
        assert_eq!(says, ["32 KiB take 25.0 us and 64 KiB only 10.0 us"]);
        assert_eq!(
            doubts(&curve("nccl", 2, &[(8, 9.0), (32, 11.0), (64, 10.0)])),
            []
        );
    }

    #[test]
    fn peers_that_lose_to_the_host_are_odd_where_peers_are_used() {
        let mut rows = curve("nccl-p2p-off", 2, &[(8, 10.0)]);
        rows.extend(curve("nccl", 2, &[(8, 14.0)]));
        assert_eq!(
            says(&rows),
            ["8 KiB take 14.0 us with P2P and 10.0 us without"]
        );
        rows[1].transport = Some("SHM/direct/direct".to_string());
        assert_eq!(doubts(&rows), []);
    }

    #[test]
    fn a_flag_is_left_once() {
        let mut rows = curve("nccl", 8, &[(12, 205.0)]);
        flag(&mut rows);
        flag(&mut rows);
        assert_eq!(rows[0].notes.len(), 1);
        assert!(rows[0].notes[0].starts_with("sick baseline: 12 KiB take 205 us"));
    }
}
