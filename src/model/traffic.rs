//! Transfers that were timed: which flows ran at the same time, who moved the bytes, on which kind of stream, and how long it
//! took. Rates only: whether content is right on every path is the ladder's question, and a rate never answers it.

use super::{case::Outcome, measurement::Unit, pair::OrderedPair, pci::PciAddress};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Where bytes start or end.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// Pinned memory of the host.
    Host,
    /// Memory of a GPU, by snapshot index.
    Gpu(u32),
}

impl Place {
    /// The GPU, if it is one.
    pub fn gpu(self) -> Option<u32> {
        match self {
            Place::Host => None,
            Place::Gpu(gpu) => Some(gpu),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Host => f.write_str("host"),
            Place::Gpu(gpu) => write!(f, "{gpu}"),
        }
    }
}

/// What moves the bytes.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Executor {
    /// A copy engine.
    CopyEngine,
    /// Loads and stores of multiprocessors.
    Multiprocessors,
    /// The driver, through the host: a copy between two GPUs of which neither may reach the other.
    Staged,
}

impl Executor {
    /// In words.
    pub fn words(self) -> &'static str {
        match self {
            Executor::CopyEngine => "copy engine",
            Executor::Multiprocessors => "multiprocessors",
            Executor::Staged => "driver, staged through the host",
        }
    }
}

/// Which side works. Between a GPU and the host it is always the GPU: it pushes to the host and pulls from it.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// The source's side writes.
    Push,
    /// The destination's side reads.
    Pull,
}

impl Way {
    /// In a word.
    pub fn name(self) -> &'static str {
        match self {
            Way::Push => "push",
            Way::Pull => "pull",
        }
    }
}

/// On which kind of stream the work was queued.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Streams {
    /// A non-blocking stream for each flow.
    NonBlocking,
    /// The per-thread default stream, one for each GPU, as all work comes from one thread.
    PerThread,
    /// The legacy null stream of each GPU.
    LegacyNull,
}

impl Streams {
    /// All of them, the undisturbed one first.
    pub const ALL: [Streams; 3] = [
        Streams::NonBlocking,
        Streams::PerThread,
        Streams::LegacyNull,
    ];

    /// In words.
    pub fn words(self) -> &'static str {
        match self {
            Streams::NonBlocking => "non-blocking",
            Streams::PerThread => "per-thread default",
            Streams::LegacyNull => "legacy null",
        }
    }
}

/// Which flows ran at once, or what else was timed.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Shape {
    /// One flow and nothing else.
    OneWay,
    /// Both directions between two places.
    BothDirections,
    /// One source to all other GPUs.
    OneToMany,
    /// All other GPUs to one destination.
    ManyToOne,
    /// Every GPU to the next one, the last to the first.
    Ring,
    /// Every ordered pair, each with bytes of its own.
    AllToAll,
    /// Every GPU of the group gets what each other one holds; rates are those of a receiver.
    AllGather,
    /// Two GPUs below one switch write to two GPUs behind one other root.
    SwitchToOneRoot,
    /// The same to GPUs behind two different roots.
    SwitchToTwoRoots,
    /// Small copies one after the other; the time of one.
    SmallCopies,
    /// A flag to the other GPU and back between two kernels that stay; the time of the round trip.
    FlagRoundTrip,
}

impl Shape {
    /// In words.
    pub fn words(self) -> &'static str {
        match self {
            Shape::OneWay => "one way",
            Shape::BothDirections => "both directions",
            Shape::OneToMany => "one to many",
            Shape::ManyToOne => "many to one",
            Shape::Ring => "ring",
            Shape::AllToAll => "all to all",
            Shape::AllGather => "all-gather",
            Shape::SwitchToOneRoot => "one switch to one root",
            Shape::SwitchToTwoRoots => "one switch to two roots",
            Shape::SmallCopies => "small copies",
            Shape::FlagRoundTrip => "flag round trip",
        }
    }

    /// Whether several flows ran at once.
    pub fn is_concurrent(self) -> bool {
        !matches!(
            self,
            Shape::OneWay | Shape::SmallCopies | Shape::FlagRoundTrip
        )
    }
}

/// One flow of a case.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Flow {
    /// Where its bytes start.
    pub source: Place,
    /// Where they end.
    pub destination: Place,
    /// Its own rate in GB/s, sample by sample: its bytes from its stream's start to its own end. Empty where only the whole
    /// is timed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub samples: Vec<f64>,
}

impl Flow {
    /// A flow between two places.
    pub fn new(source: Place, destination: Place) -> Flow {
        Flow {
            source,
            destination,
            samples: Vec::new(),
        }
    }

    /// Its ordered pair, if both ends are GPUs.
    pub fn pair(&self) -> Option<OrderedPair> {
        OrderedPair::new(self.source.gpu()?, self.destination.gpu()?)
    }
}

/// A doubt about a case, with what it rests on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "doubt", rename_all = "snake_case")]
pub enum Caveat {
    /// The memory or SM clock of a GPU was not the same before and after.
    ClockChanged {
        /// GPU index.
        gpu: u32,
        /// MHz before.
        before_mhz: u32,
        /// MHz after.
        after_mhz: u32,
    },
    /// The PCIe link of a GPU was not the same before and after, both under load.
    LinkChanged {
        /// GPU index.
        gpu: u32,
        /// GT/s and lanes before.
        before: String,
        /// The same after.
        after: String,
    },
    /// Link generation and width of a GPU could not be read under load.
    LinkUnread {
        /// GPU index.
        gpu: u32,
    },
    /// Other processes used a GPU.
    OtherProcesses {
        /// GPU index.
        gpu: u32,
        /// How many were seen.
        processes: u32,
    },
    /// Fewer samples than say something of a spread.
    FewSamples {
        /// How many there are.
        samples: u32,
    },
    /// Samples far apart.
    WideSpread {
        /// (highest - lowest) / median, percent.
        percent: f64,
    },
    /// Samples far from the others, by their modified z-score.
    Outliers {
        /// How many.
        samples: u32,
        /// Whether the first one is among them: then warm-up may be too short.
        first: bool,
    },
    /// The gate gave up before all work was queued: these samples were dropped, and no gate was used after them.
    GateExpired {
        /// How many.
        samples: u32,
    },
    /// Not queued behind a gate, because the driver needs the host to carry it: the time contains what the host spends.
    HostIncluded,
}

impl Caveat {
    /// Its kind in words.
    pub fn words(&self) -> &'static str {
        match self {
            Caveat::ClockChanged { .. } => "clock changed",
            Caveat::LinkChanged { .. } => "link changed",
            Caveat::LinkUnread { .. } => "link not read under load",
            Caveat::OtherProcesses { .. } => "other processes",
            Caveat::FewSamples { .. } => "few samples",
            Caveat::WideSpread { .. } => "wide spread",
            Caveat::Outliers { .. } => "outliers",
            Caveat::GateExpired { .. } => "gate opened by itself",
            Caveat::HostIncluded => "time of the host included",
        }
    }
}

/// How a rate compares with what the links can carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Band {
    /// As such links do.
    Usual,
    /// Below what such links do.
    Warn,
    /// Far below.
    Fail,
    /// More than the link can carry: bytes that do not arrive are fast.
    Above,
}

impl Band {
    /// In words.
    pub fn words(self) -> &'static str {
        match self {
            Band::Usual => "as usual",
            Band::Warn => "below the usual",
            Band::Fail => "far below the usual",
            Band::Above => "more than the link can carry",
        }
    }
}

/// What links of this count, generation and width should carry.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Expectation {
    /// What the link carries at most, GB/s.
    pub ceiling: f64,
    /// What such hosts reach, GB/s.
    pub typical: f64,
    /// Below this the rate is worth a warning, GB/s.
    pub warn_below: f64,
    /// Below this it is a failure, GB/s.
    pub fail_below: f64,
    /// The links: "18 NVLinks of 25.0 GB/s", "Gen5 x16 at both ends, SYS".
    pub link: String,
    /// Host class that says so.
    pub class: String,
    /// Where the class has it from.
    pub source: String,
    /// Where the measured median lies.
    pub band: Band,
}

/// One timed case.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Traffic {
    /// Which flows ran at once.
    pub shape: Shape,
    /// What moved the bytes.
    pub executor: Executor,
    /// Which side worked.
    pub way: Way,
    /// Kind of stream.
    pub streams: Streams,
    /// Bytes of one copy of one flow.
    pub bytes: u64,
    /// Copies of each flow in one sample, back to back.
    pub copies: u32,
    /// The flows.
    pub flows: Vec<Flow>,
    /// Unit of `whole`.
    pub unit: Unit,
    /// Of all flows together, sample by sample: all bytes over the time from the common start to the last end; or
    /// microseconds. For an all-gather: the bytes of one receiver over that time.
    pub whole: Vec<f64>,
    /// Samples that were run first and not kept.
    pub warmup: u32,
    /// Whether the last sample's content was right where it was looked at; or why there are no numbers.
    pub outcome: Outcome,
    /// Doubts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub caveats: Vec<Caveat>,
    /// Derived: what the single flows promised, each link of a GPU counted once, GB/s in the unit of `whole`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub promised: Option<f64>,
    /// Derived: what the links should carry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected: Option<Expectation>,
}

impl Traffic {
    /// GPUs that take part, ascending.
    pub fn gpus(&self) -> Vec<u32> {
        let ends = self.flows.iter();
        let mut gpus: Vec<u32> = ends
            .flat_map(|flow| [flow.source.gpu(), flow.destination.gpu()])
            .flatten()
            .collect();
        gpus.sort_unstable();
        gpus.dedup();
        gpus
    }

    /// Receivers of an all-gather; 1 of any other shape, because its rate is that of the whole.
    pub fn receivers(&self) -> u32 {
        match self.shape {
            Shape::AllGather => self.gpus().len().max(1) as u32,
            _ => 1,
        }
    }

    /// What it is about, in short: "0->1", "host->3", "8 flows".
    pub fn subject(&self) -> String {
        match (self.shape, self.flows.as_slice()) {
            (Shape::OneToMany, [first, ..]) => format!("from GPU{}", first.source),
            (Shape::ManyToOne, [first, ..]) => format!("to GPU{}", first.destination),
            (Shape::BothDirections, [first, _]) => {
                format!("{}<->{}", first.source, first.destination)
            }
            (_, [one]) => format!("{}->{}", one.source, one.destination),
            (Shape::FlagRoundTrip, [first, ..]) => {
                format!("{}->{}", first.source, first.destination)
            }
            (Shape::SwitchToOneRoot | Shape::SwitchToTwoRoots, flows) => flows
                .iter()
                .map(|flow| format!("{}->{}", flow.source, flow.destination))
                .collect::<Vec<_>>()
                .join(" "),
            (_, _) => format!("{} GPUs", self.gpus().len()),
        }
    }
}

/// What another tool measured, as its file says it.
#[derive(Debug, Clone, PartialEq)]
pub struct OtherTool {
    /// The tool and its version: "nvbandwidth v0.8".
    pub tool: String,
    /// PCI addresses of its devices, in its order; `None` where the file does not tell.
    pub devices: Vec<Option<PciAddress>>,
    /// Its tables.
    pub tables: Vec<OtherTable>,
}

/// One table of another tool.
#[derive(Debug, Clone, PartialEq)]
pub struct OtherTable {
    /// Name of the test case.
    pub name: String,
    /// Rows of cells; `None` where it says N/A.
    pub rows: Vec<Vec<Option<f64>>>,
    /// Why it has no cells: waived, failed.
    pub missing: Option<String>,
}

/// Another tool's numbers beside ours.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Comparison {
    /// The tool and its version: "nvbandwidth 0.8".
    pub tool: String,
    /// How it measures.
    pub their_method: String,
    /// How we do.
    pub our_method: String,
    /// Cells that both have.
    pub cells: Vec<ComparedCell>,
    /// What one side has and the other has not, in words.
    pub left_out: Vec<String>,
}

/// One number of two tools.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ComparedCell {
    /// The other tool's test case.
    pub testcase: String,
    /// What it is about: "0->1", "host->3".
    pub subject: String,
    /// Their number.
    pub theirs: f64,
    /// Our median.
    pub ours: f64,
    /// Unit of both.
    pub unit: Unit,
    /// (ours - theirs) / theirs, percent.
    pub percent: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_says_what_it_is_about() {
        let flow = |s, d| Flow::new(Place::Gpu(s), Place::Gpu(d));
        let mut case = Traffic {
            shape: Shape::OneWay,
            executor: Executor::CopyEngine,
            way: Way::Push,
            streams: Streams::NonBlocking,
            bytes: 4096,
            copies: 1,
            flows: vec![Flow::new(Place::Host, Place::Gpu(3))],
            unit: Unit::GbPerS,
            whole: Vec::new(),
            warmup: 0,
            outcome: Outcome::Intact,
            caveats: Vec::new(),
            promised: None,
            expected: None,
        };
        assert_eq!(case.subject(), "host->3");
        assert_eq!((case.gpus(), case.receivers()), (vec![3], 1));
        case.shape = Shape::AllGather;
        case.flows = vec![flow(0, 1), flow(1, 0)];
        assert_eq!((case.subject().as_str(), case.receivers()), ("2 GPUs", 2));
        case.shape = Shape::OneToMany;
        case.flows = vec![flow(4, 1), flow(4, 0)];
        assert_eq!(case.subject(), "from GPU4");
    }
}
