//! Whether a reduction's result may be built upon. A result of NCCL with P2P stands only beside a control arm that is right:
//! where NCCL is wrong or hangs without P2P too, peers are not what is seen.

use super::{NCCL, NCCL_P2P_OFF, NCCL_P2P_SYS, comparable};
use crate::model::{case::Outcome, reduction::Reduction};

/// How far a row goes as proof.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// Right to the bit on every rank in every judged call.
    Proven,
    /// Wrong, hung, faulted or died.
    Failed,
    /// It says nothing of peers, for this reason.
    Inconclusive(String),
    /// It does not exist here, was refused or did not run.
    NotRun,
}

/// The standing of `row` among all `rows` of its run.
pub fn standing(rows: &[Reduction], row: &Reduction) -> Standing {
    if row.algorithm == NCCL || row.algorithm == NCCL_P2P_SYS {
        let control = rows.iter().find(|other| {
            other.algorithm == NCCL_P2P_OFF && other.bytes == row.bytes && comparable(other, row)
        });
        if let Some(control) = control.filter(|control| control.outcome.is_failure())
            && row.outcome.ran()
        {
            return Standing::Inconclusive(format!(
                "the control arm (NCCL_P2P_DISABLE=1) failed as well ({}): nothing follows for P2P",
                control.outcome.word()
            ));
        }
    }
    match &row.outcome {
        Outcome::Intact if row.calls > 0 => Standing::Proven,
        outcome if outcome.is_failure() => Standing::Failed,
        _ => Standing::NotRun,
    }
}

#[cfg(test)]
mod tests {
    use super::{super::sample::row, *};

    #[test]
    fn a_control_that_fails_takes_the_meaning_of_the_other_arms() {
        let hung = Outcome::TimedOut { after_ms: 20_000 };
        let mut rows = vec![
            row("nccl-p2p-off", 2, 8192, 14.0),
            row("nccl", 2, 8192, 9.0),
            row("one-shot-push", 2, 8192, 3.0),
        ];
        assert_eq!(standing(&rows, &rows[1]), Standing::Proven);
        rows[1].outcome = hung.clone();
        assert_eq!(standing(&rows, &rows[1]), Standing::Failed);
        rows[0].outcome = hung;
        let says = standing(&rows, &rows[1]);
        assert!(matches!(says, Standing::Inconclusive(why) if why.contains("control arm")));
        rows[1].outcome = Outcome::Intact;
        assert!(matches!(
            standing(&rows, &rows[1]),
            Standing::Inconclusive(_)
        ));
        // The control itself has failed, and our own kernels are not NCCL's.
        assert_eq!(standing(&rows, &rows[0]), Standing::Failed);
        assert_eq!(standing(&rows, &rows[2]), Standing::Proven);
        // A control of another size says nothing of this one.
        rows[0].bytes = 65_536;
        assert_eq!(standing(&rows, &rows[1]), Standing::Proven);
    }

    #[test]
    fn nothing_judged_is_nothing_proven() {
        let mut one = row("nccl", 2, 8192, 9.0);
        one.calls = 0;
        assert_eq!(standing(&[], &one), Standing::NotRun);
        let reason = "interrupted".to_string();
        one.outcome = Outcome::NotRun { reason };
        assert_eq!(standing(&[], &one), Standing::NotRun);
    }
}
