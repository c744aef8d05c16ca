//! What an existing launch was read as, and what is wrong with it.

use super::finding::{Setting, Severity};
use serde::Serialize;

/// One launch held against what is known of its engine.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct LaunchCheck {
    /// Engine id.
    pub engine: String,
    /// Engine as people write it.
    pub engine_name: String,
    /// Where it was read: "line 4", "container llm".
    pub place: String,
    /// What was read: name and value, in words.
    pub read: Vec<(String, String)>,
    /// What is wrong, worst first.
    pub problems: Vec<LaunchProblem>,
    /// What was judged.
    pub judged: Vec<String>,
    /// What of the launch could not be judged, and what would tell. Nothing is right as long as something stands here.
    pub not_judged: Vec<String>,
    /// What no text of a launch holds and this check therefore does not speak of.
    pub outside: Vec<String>,
}

/// What became of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum LaunchOutcome {
    /// Something is wrong.
    Problem,
    /// Nothing is wrong in what was judged, and all that was given was judged.
    NothingWrong,
    /// Nothing was found wrong, and something could not be judged.
    NotJudged,
}

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LaunchProblem {
    /// Trap id.
    pub id: String,
    /// How bad.
    pub severity: Severity,
    /// What is wrong.
    pub wrong: String,
    /// What to change.
    pub change: String,
    /// Settings that mend it, as they are written: "--disable-custom-all-reduce", "unset GGML_CUDA_P2P".
    pub settings: Vec<String>,
    /// Source of the fact.
    pub source: String,
}

impl LaunchCheck {
    /// Which of the three it is. What is only worth knowing is no problem; what was not read outranks a warning, as in every
    /// verdict.
    pub fn outcome(&self) -> LaunchOutcome {
        match self.worst() {
            Some(Severity::Critical) => LaunchOutcome::Problem,
            _ if !self.not_judged.is_empty() => LaunchOutcome::NotJudged,
            Some(Severity::Warning) => LaunchOutcome::Problem,
            _ => LaunchOutcome::NothingWrong,
        }
    }

    /// The worst of its problems.
    pub fn worst(&self) -> Option<Severity> {
        self.problems.iter().map(|p| p.severity).max()
    }
}

/// "--flag value", "NAME=value": a setting as it is written in a launch.
pub fn written(setting: &Setting, equals: bool) -> String {
    match &setting.value {
        None => setting.name.clone(),
        Some(value) if equals => format!("{}={value}", setting.name),
        Some(value) => format!("{} {value}", setting.name),
    }
}
