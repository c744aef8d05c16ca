//! A saved report is judged again, by the rules of this version and of the command that made it: one that timed copies or
//! all-reduces has no pairs that could be proven, and is not blamed for it.

use super::{measure, qualify, reduce};
use crate::model::report::{Kind, Report};

/// Replaces all that is derived.
pub(super) fn judge(report: &mut Report) {
    match report.kind() {
        Kind::Reductions => reduce::judge(report),
        Kind::Traffic => measure::judge(report),
        Kind::Ladder => {
            let left_out = report.coverage.left_out.clone();
            qualify::derive(report, &left_out);
        }
    }
}
