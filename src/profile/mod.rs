//! Engines, models and classes of hosts as data: `profiles/**/*.toml` as types, embedded in the binary and overridable from a folder.
//!
//! Profiles only state: no expressions, no defaults that guess. A key that a model file lacks is unknown. What a profile
//! may say is a closed set; a new kind of condition is a Rust change on purpose.

#[cfg(test)]
mod broken;
mod check;
mod condition;
mod config;
mod consumer;
mod engine;
mod host;
mod inherit;
mod load;
mod model;
mod names;
mod trap;

pub use condition::{Condition, NotAVersion, Version, VersionRange};
pub use config::{ConfigError, read_config};
pub use consumer::{ConsumerPath, ConsumerProfile, Need, Unused, embedded_consumers};
pub use engine::{
    AllocationRule, Backend, Cap, DraftMeaning, EngineProfile, Moves, P2pCacheFile, Practice,
    Speculation, SpeculationMethod, Switch, SwitchKind, WorkspaceFormula, Worth,
};
pub use host::{
    Asked, Between, Directions, ExpectedRate, HostClass, LinkKind, Mover, NvlinkRate, expected,
};
pub use load::{ProfileError, Profiles};
pub use model::ModelProfile;
pub use names::{ModelWord, Names, Parser, ReadAs, Reads, SwitchWord, edits, nearest};
pub use trap::{Clause, Launch, Named, Reach, Setting, SettingKind, Times, Trap, Way};
