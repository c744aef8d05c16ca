//! How much of the host is known: what was planned, what ran, what did not and why, and which faults would have been seen.

use super::{
    super::{
        page::{count, cut, size},
        terminal,
    },
    class, facts,
    markup::Markup,
    table,
};
use crate::model::report::{Gap, Report};

pub(super) fn coverage(report: &Report, m: &mut Markup) {
    let coverage = &report.coverage;
    let sum = |gaps: &[Gap]| gaps.iter().map(|g| u64::from(g.cases)).sum::<u64>();
    let mut rows = vec![
        ("planned", count(coverage.planned as usize, "case")),
        ("ran", count(coverage.ran as usize, "case")),
        ("not run", count(sum(&coverage.not_run) as usize, "case")),
        (
            "not applicable",
            count(sum(&coverage.not_applicable) as usize, "case"),
        ),
    ];
    if let Some(budget) = &coverage.budget {
        rows.push((
            "budget",
            format!(
                "{}: {} on each GPU, {} of pinned host memory, {:.0} s expected, no case begun after {:.0} s",
                cut(&budget.name, 16),
                size(budget.device_bytes),
                size(budget.host_bytes),
                budget.expected_s.ceil(),
                budget.limit_s
            ),
        ));
    }
    rows.push((
        "smallest fault rate that would be seen (95%)",
        coverage.seen_fault_rate.map_or_else(
            || "n/a: nothing was tried often enough to say".to_string(),
            |rate| format!("{}, worst case", terminal::share_of_attempts(rate)),
        ),
    ));
    let (tone, selftest) = terminal::selftest_words(report);
    let selftest = match class(tone) {
        "bad" => format!("\u{2716} {selftest}"),
        _ => selftest,
    };
    rows.push(("self-test of the checker", selftest));
    facts(m, rows);
    gaps(report, m);
    if !report.notes.is_empty() {
        m.element("ul", &[], |m| {
            for note in &report.notes {
                m.leaf("li", &[], note);
            }
        });
    }
    let groups = terminal::sensitivity_groups(coverage);
    if !groups.is_empty() {
        let rows = groups.into_iter().map(|(loaded, attempts, rate, names)| {
            vec![
                ("", names.join(", ")),
                ("", if loaded { "under load" } else { "quiet" }.to_string()),
                ("number", attempts.to_string()),
                ("", terminal::share_of_attempts(rate)),
            ]
        });
        let columns = [
            "mechanisms",
            "traffic",
            "attempts a pair, fewest",
            "fault rate that would be seen",
        ];
        let caption = "A fault that strikes a share p of attempts stays unseen in n of them with (1 - p)^n; here that is 5%";
        table(m, caption, &columns, rows);
    }
}

fn gaps(report: &Report, m: &mut Markup) {
    let coverage = &report.coverage;
    let mut rows: Vec<Vec<(&str, String)>> = Vec::new();
    for (word, tone, gaps) in [
        ("not run", "doubt", &coverage.not_run),
        ("not applicable", "none", &coverage.not_applicable),
    ] {
        for gap in terminal::gap_groups(gaps) {
            rows.push(vec![
                ("", word.to_string()),
                ("number", gap.cases.to_string()),
                (tone, gap.reason),
            ]);
        }
    }
    rows.extend(coverage.left_out.iter().map(|what| {
        let word = "left out".to_string();
        vec![("", word), ("none", String::new()), ("", what.clone())]
    }));
    if !rows.is_empty() {
        let caption = "What did not run, and why; what is not applicable does not exist on this host and is no gap";
        table(m, caption, &["what", "cases", "why"], rows);
    }
}
