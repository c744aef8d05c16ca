//! Engines and models as data: `profiles/**/*.toml` as types, embedded in the binary and overridable from a folder.
//!
//! Profiles only state: no expressions, no defaults that guess. A key that a model file lacks is unknown. What a profile
//! may say is a closed set; a new kind of condition is a Rust change on purpose.

mod consumer;
mod engine;
mod load;
mod model;

pub use consumer::{ConsumerPath, ConsumerProfile, Need, Unused, embedded_consumers};
pub use engine::{
    AllocationRule, Backend, Cap, Condition, DraftMeaning, Dtype, EngineProfile, Speculation,
    SpeculationMethod, Switch, SwitchKind, WorkspaceFormula,
};
pub use load::{ProfileError, Profiles};
pub use model::ModelProfile;
