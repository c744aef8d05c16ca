//! From records to findings: why pairs are broken, who may rely on what, how much was covered, and the verdict. Pure:
//! the same answer from a live run and from a saved report. Knows nothing of drivers, engines' flags or printing.

mod cause;
mod compare;
mod consumers;
mod coverage;
mod evidence;
mod ladder;
pub mod reductions;
#[cfg(test)]
pub(crate) mod sample;
mod sorted;
mod ticket;
pub mod traffic;
mod verdict;
mod weigh;
mod xid;

pub use cause::ROSTER;
pub use compare::compare;
pub use consumers::{consumers, consumers_of};
pub use coverage::coverage;
pub(crate) use evidence::involves_host;
pub use evidence::{ControlArm, Evidence, PeerClaim};
pub use ladder::rung_reached;
pub use ticket::ticket;
pub use verdict::{REPORT, unfinished, verdict};
pub use weigh::{Cause, WantedCase, findings, page, wanted};
