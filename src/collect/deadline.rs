//! Questions that may never be answered: a driver whose GPU is wedged does not return. Each runs on a thread of its own and is
//! waited for so long and no longer. Knows nothing of what is asked; a thread that does not come back stays until its process
//! ends, which is why all this runs in a worker.

use crate::model::reading::Absence;
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

/// A question under way.
pub(super) struct Pending<T> {
    answer: mpsc::Receiver<thread::Result<T>>,
    asked: Instant,
}

/// Begins to ask.
pub(super) fn begin<T: Send + 'static>(
    question: impl FnOnce() -> T + Send + 'static,
) -> Pending<T> {
    let (sender, answer) = mpsc::channel();
    // Where no thread can be had the sender is dropped, and that is the answer.
    let _ = thread::Builder::new().spawn(move || {
        // Nobody listens any more when the answer is late.
        let _ = sender.send(catch_unwind(AssertUnwindSafe(question)));
    });
    Pending {
        answer,
        asked: Instant::now(),
    }
}

impl<T> Pending<T> {
    /// The answer, waited for until `limit` after the question.
    ///
    /// # Errors
    /// [`Absence::NoAnswer`] when it has not come by then; [`Absence::Failed`] when the foreign code panicked.
    pub(super) fn within(self, limit: Duration) -> Result<T, Absence> {
        let left = limit.saturating_sub(self.asked.elapsed());
        match self.answer.recv_timeout(left) {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(_)) => Err(Absence::Failed("what was asked panicked".to_string())),
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                Err(Absence::Failed("no thread could be started".to_string()))
            }
            Err(mpsc::RecvTimeoutError::Timeout) => {
                Err(Absence::NoAnswer(format!("{} s", limit.as_secs_f32())))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_does_not_answer_is_not_waited_for() {
        let (hold, held) = mpsc::channel::<()>();
        let silent = begin(move || held.recv());
        let others: Vec<_> = (0..3).map(|n| begin(move || n)).collect();
        let started = Instant::now();
        let limit = Duration::from_millis(200);
        assert_eq!(
            silent.within(limit).unwrap_err(),
            Absence::NoAnswer("0.2 s".to_string())
        );
        // The limit runs from the question, so that several silent ones cost no more than one.
        for (n, other) in others.into_iter().enumerate() {
            assert_eq!(other.within(limit), Ok(n));
        }
        assert!(started.elapsed() < Duration::from_secs(5));
        drop(hold);
    }

    #[test]
    fn a_panic_is_an_absence() {
        let broken = begin(|| -> u32 { std::panic::resume_unwind(Box::new("foreign")) });
        assert!(matches!(
            broken.within(Duration::from_secs(5)),
            Err(Absence::Failed(_))
        ));
    }
}
