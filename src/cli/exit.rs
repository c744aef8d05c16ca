//! Exit codes and the one way to stop early.

/// A wrong command line or a file that cannot be read as what it should be (sysexits EX_USAGE).
pub(super) const USAGE: u8 = 64;
/// The tool itself failed (sysexits EX_SOFTWARE).
pub(super) const FAILED: u8 = 70;
/// Nothing was tested or not all of it.
pub(super) const INCONCLUSIVE: u8 = 3;

/// Why a command ended without its result.
#[derive(Debug)]
pub(super) struct Stop {
    /// One message for standard error.
    pub(super) message: String,
    /// Exit code.
    pub(super) code: u8,
}

impl Stop {
    /// Bad input of the operator.
    pub(super) fn usage(message: impl Into<String>) -> Stop {
        Stop {
            message: message.into(),
            code: USAGE,
        }
    }

    /// Nothing could be tested.
    pub(super) fn inconclusive(message: impl Into<String>) -> Stop {
        Stop {
            message: message.into(),
            code: INCONCLUSIVE,
        }
    }

    /// The tool failed.
    pub(super) fn failed(message: &str) -> Stop {
        Stop {
            message: message.to_string(),
            code: FAILED,
        }
    }
}
