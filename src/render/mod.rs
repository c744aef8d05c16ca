//! A report, a snapshot or a recommendation as bytes. This floor knows how things look and nothing of how they came
//! about: it reads the model, never a clock, the environment or a device, and it writes to the writer that it is given.
//!
//! All text goes through one page, which makes foreign text harmless and fits it to the width; colour only repeats
//! what a word already says.

pub mod bench;
pub mod check;
pub mod diagnose;
pub mod diff;
pub mod drain;
mod evidence;
pub mod format;
mod groups;
pub mod html;
pub mod json;
pub mod junit;
pub mod launch;
mod loaded;
pub mod map;
pub mod markdown;
mod markup;
mod matrix;
mod outcomes;
mod page;
pub mod prometheus;
pub mod recommend;
pub mod reduce;
pub mod selftest;
pub mod terminal;
pub mod traffic;
mod tree;
pub mod verdict_file;

pub use page::{Options, clean, reflowed};
