//! An existing launch, read from what people paste (a command, a script, variables, a compose or Kubernetes fragment, a
//! Dockerfile, a systemd unit), and held against the traps that the profiles know.

#[cfg(test)]
mod as_parsed;
#[cfg(test)]
mod as_read;
mod blocks;
#[cfg(test)]
mod by_mechanism;
mod clauses;
#[cfg(test)]
mod conditional;
mod containers;
mod devices;
mod dockerfile;
mod document;
mod environment;
#[cfg(test)]
mod exchanging;
#[cfg(test)]
mod field_traps;
mod forbidden;
#[cfg(test)]
mod fragments;
mod images;
mod inline;
mod needless;
#[cfg(test)]
mod on_a_host;
mod parser;
mod read;
mod script;
mod shell;
mod sizes;
mod spelling;
#[cfg(test)]
mod started;
#[cfg(test)]
mod tests;
mod traps;
mod unit;
#[cfg(test)]
mod unread_words;
mod variables;
mod ways;
#[cfg(test)]
mod ways_on_a_host;

pub use devices::Given;
pub use read::{Invocation, ReadError, read};
pub use traps::{Question, check};
