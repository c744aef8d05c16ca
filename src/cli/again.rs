//! A saved report is judged again, by the rules of this version and of the command that made it: one that timed copies or
//! all-reduces has no pairs that could be proven, and is not blamed for it.

use super::{measure, qualify, reduce};
use crate::model::report::Report;

/// Replaces all that is derived.
pub(super) fn judge(report: &mut Report) {
    let tested = !report.records.is_empty();
    match (report.reductions.is_empty(), report.traffic.is_empty()) {
        (false, true) if !tested => reduce::judge(report),
        (true, false) if !tested => measure::judge(report),
        _ => {
            let left_out = report.coverage.left_out.clone();
            qualify::derive(report, &left_out);
        }
    }
}
