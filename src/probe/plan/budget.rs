//! How much is spent: one plan, three budgets. Memory and time are worked out before anything is touched, and obeyed.

use std::time::Duration;

/// What the operator is ready to spend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Budget {
    /// A look: every mechanism and rung, few sizes, one attempt each.
    Quick,
    /// Every size and place, several attempts.
    #[default]
    Default,
    /// The default, and then a soak: small transfers with moving seeds, over and over.
    Deep {
        /// Wall time of the soak.
        soak: Duration,
    },
}

impl Budget {
    /// Attempts of a content case.
    pub fn attempts(self) -> u32 {
        match self {
            Budget::Quick => 1,
            Budget::Default | Budget::Deep { .. } => 3,
        }
    }

    /// Wall time after which no further case is begun, for `gpus` GPUs on real hardware. Far above what a healthy host needs:
    /// it keeps a sick one from holding a maintenance window.
    pub fn time_limit(self, gpus: usize) -> Duration {
        let each = Duration::from_secs(5) * gpus as u32;
        match self {
            Budget::Quick => Duration::from_secs(30) + each,
            Budget::Default => Duration::from_secs(240) + 4 * each,
            Budget::Deep { soak } => Budget::Default.time_limit(gpus) + soak,
        }
    }

    /// As reports and messages name it.
    pub fn name(self) -> &'static str {
        match self {
            Budget::Quick => "quick",
            Budget::Default => "default",
            Budget::Deep { .. } => "deep",
        }
    }
}

/// What a plan will take, as far as can be said before.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Needs {
    /// Device memory on each GPU, bytes, of one worker at a time.
    pub device_bytes: u64,
    /// Pinned host memory, bytes, all GPUs together.
    pub host_bytes: u64,
    /// Wall time without trouble, seconds: a guess from sizes and usual rates.
    pub seconds: f64,
}
