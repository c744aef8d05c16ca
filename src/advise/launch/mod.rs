//! An existing launch, read from what people paste (a command, a script, variables, a compose or Kubernetes fragment), and
//! held against the traps that the profiles know.

mod containers;
mod document;
mod read;
mod script;
mod shell;
mod sizes;
#[cfg(test)]
mod tests;
mod traps;

pub use read::{Invocation, ReadError, read};
pub use traps::{Question, check};
