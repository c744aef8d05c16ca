//! Why cases of a run that ended early have no answer, in words. Knows how the run was ended; not which cases it had come to.

use crate::{
    ffi::process,
    model::case::{NO_ANSWER, TIME_IS_UP},
};
use std::time::Duration;

/// Of what was not begun any more, once the run was interrupted.
pub(super) fn why() -> &'static str {
    match process::time_is_up() {
        true => TIME_IS_UP,
        false => "interrupted",
    }
}

/// Of what was under way for `time`: it may be what hangs.
pub(super) fn why_unanswered(time: Duration) -> String {
    format!("{}, and {NO_ANSWER} in {:.1} s", why(), time.as_secs_f64())
}
