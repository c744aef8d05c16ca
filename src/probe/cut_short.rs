//! Why cases of a run that ended early have no answer, in words. Knows how the run was ended; not which cases it had come to.

use crate::{
    ffi::process,
    model::case::{INTERRUPTED, NO_ANSWER, TIME_IS_UP},
};
use std::time::Duration;

/// Of what was not begun any more, once the run was interrupted.
pub(super) fn why() -> &'static str {
    match process::time_is_up() {
        true => TIME_IS_UP,
        false => INTERRUPTED,
    }
}

/// An answer that is not there after so long is late; whoever ends a run always catches something under way.
const LATE: Duration = Duration::from_secs(5);

/// Of what was under way for `time`: after long it may be what hangs.
pub(super) fn why_unanswered(time: Duration) -> String {
    if time < LATE {
        return why().to_string();
    }
    format!("{}, and {NO_ANSWER} in {:.1} s", why(), time.as_secs_f64())
}
