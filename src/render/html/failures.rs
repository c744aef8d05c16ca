//! What each mechanism gave, and what exactly was wrong: buffers with their samples, and failures that leave no data.

use super::{
    super::{
        evidence, outcomes,
        page::{count, cut},
    },
    class,
    markup::Markup,
    table,
};
use crate::model::{
    case::{Corruption, Record, Rung, Sample, WrongKind},
    report::Report,
};

/// Wrong buffers that are shown with their samples; the report file has all of them.
const MOST_BUFFERS: usize = 12;
/// Samples of one of them.
const MOST_SAMPLES: usize = 8;
/// Groups of failures without data.
const MOST_GROUPS: usize = 24;
/// Kinds of remarks.
const MOST_REMARKS: usize = 16;

pub(super) fn write(report: &Report, m: &mut Markup) {
    let records: Vec<&Record> = report.records.iter().collect();
    if records.is_empty() {
        return;
    }
    let remarks = outcomes::gpu_remarks(report);
    if !remarks.is_empty() {
        m.leaf("h3", &[], "GPUs by themselves");
        m.element("dl", &[("class", "facts")], |m| {
            for (gpu, remarks) in &remarks {
                m.leaf("dt", &[("class", "bad")], &format!("\u{2716} GPU{gpu}"));
                m.leaf("dd", &[], &remarks.join("; "));
            }
        });
    }
    buffers(report, m);
    without_data(report, m);
    mechanisms(&records, m);
}

fn mechanisms(records: &[&Record], m: &mut Markup) {
    m.leaf("h3", &[], "Every mechanism");
    let rows = outcomes::mechanism_table(records).into_iter().map(|row| {
        let rate = format!("{}{}", row.rate, row.slowest);
        vec![
            ("", row.mechanism),
            ("number", row.rung),
            (class(row.tone), row.outcomes),
            ("", rate),
        ]
    });
    let columns = ["mechanism", "rung", "cases", "timed alone"];
    table(
        m,
        "Cases by mechanism; \u{b1} is the median absolute deviation",
        &columns,
        rows,
    );
    let kinds = outcomes::remark_kinds(records);
    if kinds.is_empty() {
        return;
    }
    m.leaf("h3", &[], "Remarks and doubts");
    m.element("ul", &[], |m| {
        for ((mechanism, text), number) in kinds.iter().take(MOST_REMARKS) {
            let cases = count(*number, "case");
            m.leaf(
                "li",
                &[],
                &format!("{}: {text} ({cases})", cut(mechanism, 24)),
            );
        }
    });
    if kinds.len() > MOST_REMARKS {
        let more = count(kinds.len() - MOST_REMARKS, "more kind");
        m.leaf(
            "p",
            &[("class", "faint")],
            &format!("{more} of remark in the report file."),
        );
    }
}

/// One buffer of each mechanism and kind of wrong, the worst first, as many as a page bears; and how many there would be.
fn worth_a_look<'a>(
    all: &[(&'a Record, &'a Corruption)],
) -> (Vec<(&'a Record, &'a Corruption)>, usize) {
    let mut known: Vec<(Rung, &str, WrongKind)> = Vec::new();
    let mut chosen = Vec::new();
    for (record, corruption) in all {
        let key = (
            record.case.rung,
            record.case.mechanism.as_str(),
            corruption.kind,
        );
        if !known.contains(&key) {
            known.push(key);
            chosen.push((*record, *corruption));
        }
    }
    let kinds = chosen.len();
    chosen.truncate(MOST_BUFFERS);
    (chosen, kinds)
}

fn buffers(report: &Report, m: &mut Markup) {
    let all = evidence::wrong(report);
    if all.is_empty() {
        return;
    }
    m.leaf("h3", &[], "Wrong data");
    let (shown, kinds) = worth_a_look(&all);
    let which = match shown.len() == kinds {
        true => format!("the worst of each mechanism and kind of wrong ({kinds})"),
        false => format!(
            "the worst of {} of {kinds} mechanisms and kinds of wrong",
            shown.len()
        ),
    };
    let text = format!(
        "{} with wrong data; shown: {which}. The report file has all of them.",
        count(all.len(), "case")
    );
    m.leaf("p", &[], &text);
    for (position, (record, corruption)) in shown.iter().enumerate() {
        let open = [("open", "open")];
        let attributes: &[(&str, &str)] = if position == 0 { &open } else { &[] };
        m.element("details", attributes, |m| {
            m.element("summary", &[], |m| {
                m.leaf(
                    "strong",
                    &[("class", "bad")],
                    &format!("\u{2716} {}", corruption.kind),
                );
                m.text(&format!(" {}", evidence::case_words(record)));
            });
            m.element("ul", &[], |m| {
                for sentence in evidence::sentences(record, corruption) {
                    m.leaf("li", &[], &sentence);
                }
            });
            samples(&corruption.samples, m);
        });
    }
}

fn samples(samples: &[Sample], m: &mut Markup) {
    if samples.is_empty() {
        return;
    }
    let accessor = samples.iter().any(|s| s.accessor.is_some());
    let origin = samples.iter().any(|s| s.origin.is_some());
    let mut columns = vec!["offset", "expected", "owner reads", "owner reads again"];
    columns.extend(accessor.then_some("accessor reads"));
    columns.extend(origin.then_some("says it is"));
    let text = |value: &Option<String>| value.clone().unwrap_or_else(|| "n/a".to_string());
    let rows = samples.iter().take(MOST_SAMPLES).map(|sample| {
        let mut row = vec![
            ("mono", format!("{:#010x}", sample.offset)),
            ("mono", sample.expected.clone()),
            ("mono bad", sample.owner.clone()),
            ("mono", text(&sample.reread)),
        ];
        row.extend(accessor.then(|| ("mono", text(&sample.accessor))));
        row.extend(origin.then(|| ("mono", text(&sample.origin))));
        row
    });
    let caption = format!(
        "Units of 16 bytes in memory order, {} of {}",
        samples.len().min(MOST_SAMPLES),
        count(samples.len(), "sample")
    );
    table(m, &caption, &columns, rows);
}

fn without_data(report: &Report, m: &mut Markup) {
    let groups = evidence::without_data(report);
    if groups.is_empty() {
        return;
    }
    m.leaf("h3", &[], "Failures and refusals that leave no data");
    m.element("ul", &[], |m| {
        for group in groups.iter().take(MOST_GROUPS) {
            let (who, how) = (group.who(), group.mechanisms.join(", "));
            let text = format!("{who} by {how}: {}", group.what);
            m.leaf("li", &[], &text);
        }
    });
    if groups.len() > MOST_GROUPS {
        let more = count(groups.len() - MOST_GROUPS, "more kind");
        m.leaf(
            "p",
            &[("class", "faint")],
            &format!("{more} of failure in the report file."),
        );
    }
}
