//! What became of all-reduces over several GPUs together: one line a group.

use super::{
    outcomes::particulars_of,
    page::{Page, Tone, cut},
};
use crate::model::{
    case::{Outcome, Record},
    group::Group,
    report::Report,
};
use std::{collections::BTreeMap, io};

/// Writes a line for each group of which anything was asked, the smallest first.
pub(super) fn write(report: &Report, page: &mut Page<'_>) -> io::Result<()> {
    let mut groups: BTreeMap<(u32, Group), Vec<&Record>> = BTreeMap::new();
    for record in &report.records {
        if let Some(group) = record.case.subject.group() {
            let key = (group.count(), group);
            groups.entry(key).or_default().push(record);
        }
    }
    if groups.is_empty() {
        return Ok(());
    }
    page.heading("All-reduce over several GPUs together (rung 6)")?;
    for ((_, group), records) in &groups {
        let (tone, text) = words(records);
        page.labelled(tone, &format!("  {group}  "), Tone::Plain, &text)?;
    }
    Ok(())
}

/// Wrong data before all else, then other failures, then what did not run, then what was right.
fn words(records: &[&Record]) -> (Tone, String) {
    let first = |wanted: &dyn Fn(&Record) -> bool| records.iter().find(|r| wanted(r));
    let told = |record: &Record| {
        let what = particulars_of(record).unwrap_or_default();
        format!("{}: {what}", cut(&record.case.mechanism, 24))
    };
    let failed =
        first(&|r| r.outcome.corruption().is_some()).or_else(|| first(&|r| r.outcome.is_failure()));
    if let Some(record) = failed {
        return (Tone::Bad, told(record));
    }
    let mut right: Vec<String> = Vec::new();
    for record in records.iter().filter(|r| r.outcome.is_intact()) {
        let id = cut(&record.case.mechanism, 24);
        if !right.contains(&id) {
            right.push(id);
        }
    }
    let right = right.join(", ");
    let open = first(&|r| matches!(r.outcome, Outcome::NotRun { .. } | Outcome::Refused { .. }));
    match (open, right.is_empty()) {
        (Some(record), true) => (Tone::Doubt, told(record)),
        (Some(record), false) => (Tone::Doubt, format!("exact by {right}; {}", told(record))),
        (None, false) => (Tone::Good, format!("exact by {right}")),
        (None, true) => (
            Tone::Faint,
            match records.first().map(|r| &r.outcome) {
                Some(Outcome::NotApplicable { reason }) => format!("does not exist here: {reason}"),
                _ => "nothing was tried".to_string(),
            },
        ),
    }
}
