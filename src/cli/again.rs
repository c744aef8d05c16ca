//! A saved report is judged again, by the rules of this version and of the command that made it: one that timed copies or
//! all-reduces has no pairs that could be proven, and is not blamed for it.

use super::{measure, qualify, reduce};
use crate::{
    diagnose::REPORT,
    model::report::{Kind, Report},
    render::launch::quoted,
};
use std::path::Path;

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

/// Puts the report's own file into the command that comes next, where that takes it: for what is shown, as the file itself
/// keeps no name that another folder makes wrong.
pub(super) fn name(report: &mut Report, file: &Path) {
    report.verdict.next = named(&report.verdict.next, file);
}

/// Standard input has no name.
fn named(next: &str, file: &Path) -> String {
    if file.as_os_str() == "-" {
        return next.to_string();
    }
    let option = |value: &str| format!("--from {value}");
    next.replace(&option(REPORT), &option(&quoted(&file.to_string_lossy())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_command_names_the_report_for_a_shell() {
        let next = |file: &str| named("peerproof recommend --from REPORT --tp 2", Path::new(file));
        assert_eq!(next("a.json"), "peerproof recommend --from a.json --tp 2");
        assert_eq!(
            next("my host's.json"),
            r"peerproof recommend --from 'my host'\''s.json' --tp 2"
        );
        assert_eq!(next("-"), "peerproof recommend --from REPORT --tp 2");
    }
}
