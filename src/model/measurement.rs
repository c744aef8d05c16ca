//! Numbers with their samples. Summaries (median, spread) are functions of `stats`, not stored fields.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Samples of one quantity.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Measurement {
    /// The samples, in order, after warm-up.
    pub samples: Vec<f64>,
    /// Their unit.
    pub unit: Unit,
    /// Warm-up rounds that were run and not kept.
    pub warmup: u32,
    /// How: "events on a non-blocking stream, alone", "loaded: 4 pairs at once".
    pub method: String,
    /// Doubts about the numbers.
    pub caveats: Vec<String>,
}

/// Units of measurements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// 1e9 bytes per second.
    GbPerS,
    /// Microseconds.
    Us,
    /// Milliseconds.
    Ms,
}

impl Unit {
    /// As printed.
    pub fn name(self) -> &'static str {
        match self {
            Unit::GbPerS => "GB/s",
            Unit::Us => "us",
            Unit::Ms => "ms",
        }
    }

    /// How much better a value is that is `ratio` times another: a rate should be high, a time low. Below 1 it is worse.
    pub fn gain(self, ratio: f64) -> f64 {
        match self {
            Unit::GbPerS => ratio,
            Unit::Us | Unit::Ms => 1.0 / ratio,
        }
    }
}
