//! Conditions of profiles, judged for a group and a question. Pure; what is not known is said, and is no "yes".

use super::{
    group::{Group, Peers},
    request::Request,
    sizing::grouped,
};
use crate::{
    diagnose::{Evidence, rung_reached},
    model::{
        case::Rung,
        finding::{Consumer, ConsumerState, Sizing},
    },
    profile::{Backend, Cap, Condition},
};

/// What a backend is weighed against.
pub(super) struct Weighing<'a> {
    pub(super) evidence: Option<&'a Evidence<'a>>,
    pub(super) consumers: &'a [Consumer],
    pub(super) group: &'a Group,
    pub(super) sizing: Option<&'a Sizing>,
    pub(super) request: &'a Request,
}

/// Whether a condition is met.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Met {
    /// It is.
    Yes,
    /// It is not, and why.
    No(String),
    /// The host did not show it.
    Unknown(String),
    /// The question did not tell it; nothing speaks against it.
    Untold(String),
}

/// Why a backend cannot be built upon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Refusal {
    /// Data integrity, or a precondition that is not met.
    Refused(String),
    /// All holds but proofs: what is missing, and the command that would tell.
    Unproven(String),
    /// It takes smaller payloads than a full decode step.
    TooLarge(String),
}

impl Refusal {
    pub(super) fn into_reason(self, backend: &Backend) -> String {
        match self {
            Refusal::Refused(text) | Refusal::TooLarge(text) => text,
            Refusal::Unproven(text) if backend.by_default => format!("unproven: {text}"),
            Refusal::Unproven(text) => format!("candidate, unproven: {text}"),
        }
    }
}

/// Whether its kernels load from or store to peers' memory themselves, and nothing takes their place where that is slow.
pub(super) fn is_peer_kernel(backend: &Backend) -> bool {
    is_custom_kernel(backend) || backend.consumer.as_deref() == Some("flashinfer-pcie-ipc")
}

pub(super) fn is_custom_kernel(backend: &Backend) -> bool {
    backend.consumer.as_deref() == Some("custom-all-reduce")
}

/// All that the consumer needs is proven, or all of it that the version which ran can test.
pub(super) fn is_proven(consumer: &Consumer) -> bool {
    consumer.state == ConsumerState::Proven || consumer.as_far_as_tested
}

/// Something that could have been tested is missing.
pub(super) fn is_open(consumer: &Consumer) -> bool {
    consumer.state == ConsumerState::Unproven && !consumer.as_far_as_tested
}

/// What is missing of an open consumer: "NCCL P2P: rungs 4 to 6 were not tested; proven up to rung 3".
pub(super) fn gap(consumer: &Consumer) -> String {
    let sentence = consumer.sentence.as_str();
    let missing = sentence
        .strip_prefix("unproven because ")
        .unwrap_or(sentence);
    format!("{}: {missing}", consumer.name)
}

impl Weighing<'_> {
    /// Why `backend` cannot be built upon here; `None` when nothing speaks against it.
    pub(super) fn refusal(&self, backend: &Backend) -> Option<Refusal> {
        if backend.peer {
            match &self.group.peers {
                Peers::Failed(seen) => {
                    let reason = format!("peers of this group failed: {seen}");
                    return Some(Refusal::Refused(reason));
                }
                Peers::Refused(who) => {
                    return Some(Refusal::Refused(format!("no peer access: {who}")));
                }
                Peers::Unproven(_) | Peers::Proven(_) => {}
            }
            if self.group.patched && is_custom_kernel(backend) {
                return Some(Refusal::Refused("GeForce with PCIe peer access runs a patched driver; on such hosts copies were right and this kernel returned garbage".to_string()));
            }
            if let Some(seen) = self
                .group
                .staged_kernels
                .as_ref()
                .filter(|_| is_peer_kernel(backend))
            {
                return Some(Refusal::Refused(format!(
                    "kernels reach these peers through the host ({seen}): an all-reduce by kernels is slower than NCCL here"
                )));
            }
        }
        // NCCL falls back to the host path by itself; every other veto ends the matter.
        let vetoed = self
            .consumer(backend)
            .filter(|c| c.state == ConsumerState::Vetoed && c.id != "nccl-p2p");
        if let Some(consumer) = vetoed {
            return Some(Refusal::Refused(consumer.sentence.clone()));
        }
        // Without a host nothing of it is held against a backend but that nothing is proven.
        let told = |c: &&Condition| self.evidence.is_some() || !backend.peer || is_arithmetic(c);
        let unmet = backend
            .when
            .iter()
            .filter(|c| !matches!(c, Condition::Proven(_)))
            .filter(told)
            .find_map(|c| self.unmet(c));
        if let Some(reason) = unmet {
            return Some(Refusal::Refused(reason));
        }
        let over = self.over_cap(backend);
        match (self.missing(backend), over) {
            (Some(_), Some(over @ Refusal::Refused(_))) if self.evidence.is_some() => Some(over),
            (Some(missing), _) => Some(Refusal::Unproven(missing)),
            (None, over) => over,
        }
    }

    /// What is missing of the proof on which `backend` rests, and the command that would tell; `None` where all of it is there.
    pub(super) fn missing(&self, backend: &Backend) -> Option<String> {
        if !backend.peer {
            return None;
        }
        let open = match (self.consumer(backend), &self.group.peers) {
            (Some(consumer), _) if is_open(consumer) => Some(gap(consumer)),
            (Some(consumer), _) if is_proven(consumer) => None,
            (_, Peers::Unproven(missing)) => Some(missing.clone()),
            _ => None,
        };
        // Whoever is proven up to a rung has it, whatever failed of what it does not use.
        let has = |rung: &Rung| {
            let consumer = self.consumer(backend).filter(|c| is_proven(c));
            consumer.and_then(|c| c.reached).is_some_and(|r| r >= *rung)
        };
        let open = open.or_else(|| {
            let mut rungs = backend
                .when
                .iter()
                .filter(|c| matches!(c, Condition::Proven(rung) if !has(rung)));
            rungs.find_map(|c| self.unmet(c))
        })?;
        Some(format!("{open}; {}", self.group.would_tell()))
    }

    /// The verdict on the consumer that `backend` is.
    pub(super) fn consumer(&self, backend: &Backend) -> Option<&Consumer> {
        let id = backend.consumer.as_ref()?;
        self.consumers.iter().find(|c| c.id == *id)
    }

    /// Why the condition does not hold, or cannot be seen to hold.
    fn unmet(&self, condition: &Condition) -> Option<String> {
        match self.met(condition) {
            Met::Yes | Met::Untold(_) => None,
            Met::No(reason) | Met::Unknown(reason) => Some(reason),
        }
    }

    /// Whether all of `conditions` are seen to hold.
    pub(super) fn all(&self, conditions: &[Condition]) -> bool {
        conditions.iter().all(|c| self.met(c) == Met::Yes)
    }

    /// What the question left open of what `backend` asks for.
    pub(super) fn assumptions(&self, backend: &Backend) -> Vec<String> {
        backend
            .when
            .iter()
            .filter_map(|c| match self.met(c) {
                Met::Untold(text) => Some(text),
                _ => None,
            })
            .collect()
    }

    pub(super) fn met(&self, condition: &Condition) -> Met {
        let group = self.group;
        let decide = |holds: bool, reason: String| {
            if holds { Met::Yes } else { Met::No(reason) }
        };
        let sized = |judge: &dyn Fn(&Sizing) -> Met| {
            self.sizing
                .map_or(Met::Untold("the model is not told".to_string()), judge)
        };
        match condition {
            Condition::WorldSize(sizes) => decide(
                sizes.contains(&group.world()),
                format!("not covered: it exists for groups of {}", listed(sizes)),
            ),
            Condition::FullNvlinkAbove(limit) if group.world() <= *limit => Met::Yes,
            Condition::FullNvlinkAbove(limit) => match group.full_nvlink {
                Some(true) => Met::Yes,
                Some(false) => Met::No(format!(
                    "groups of more than {limit} need NVLink on every pair, and this one has not"
                )),
                None => Met::Unknown(format!(
                    "groups of more than {limit} need NVLink on every pair, which is not known here"
                )),
            },
            Condition::FullNvlink(wanted) => match group.full_nvlink {
                None => Met::Unknown("whether every pair has NVLink is not known".to_string()),
                Some(full) => decide(
                    full == *wanted,
                    if *wanted {
                        "not every pair has NVLink".to_string()
                    } else {
                        "backends over NVLink come first".to_string()
                    },
                ),
            },
            Condition::Fabric(classes) => {
                let told = format!("not made for this fabric ({})", group.fabric);
                if classes.contains(&group.fabric) {
                    Met::Yes
                } else if group.fabric == crate::model::topology::FabricClass::Unknown {
                    Met::Unknown(told)
                } else {
                    Met::No(told)
                }
            }
            Condition::OneNumaNode(wanted) => match group.one_numa_node {
                None => Met::Unknown("the NUMA nodes are not known".to_string()),
                Some(one) => decide(one == *wanted, "another spread over NUMA nodes".to_string()),
            },
            Condition::ComputeCapability(allowed) => self.compute(
                |c| allowed.contains(&c),
                |(major, minor)| format!("no table for compute capability {major}.{minor}"),
            ),
            Condition::ComputeAtLeast(least) => self.compute(
                |c| c >= *least,
                |(major, minor)| {
                    format!(
                        "needs compute capability {}.{}, and this is {major}.{minor}",
                        least.0, least.1
                    )
                },
            ),
            Condition::Dtype(types) => sized(&|sizing| {
                decide(
                    types.iter().any(|t| t.name() == sizing.dtype),
                    format!("not for {}", sizing.dtype),
                )
            }),
            Condition::PayloadAtLeast(bytes) => sized(&|sizing| {
                decide(
                    sizing.payload_bytes >= *bytes,
                    format!(
                        "for payloads from {} bytes; a full decode step has {}",
                        grouped(*bytes),
                        grouped(sizing.payload_bytes)
                    ),
                )
            }),
            Condition::PayloadAtMost(bytes) => sized(&|sizing| {
                decide(
                    sizing.payload_bytes <= *bytes,
                    format!(
                        "for payloads up to {} bytes; a full decode step has {}",
                        grouped(*bytes),
                        grouped(sizing.payload_bytes)
                    ),
                )
            }),
            Condition::ElementsMultipleOf(unit) => sized(&|sizing| {
                let elements = sizing.needed_elements;
                decide(
                    *unit > 0 && elements.is_multiple_of(*unit),
                    format!("{elements} elements are no multiple of {unit}"),
                )
            }),
            Condition::ElementsPerRankAtLeast(least) => sized(&|sizing| {
                let one = sizing.rows_per_request.saturating_mul(sizing.hidden);
                decide(
                    one / u64::from(group.world().max(1)) >= *least,
                    format!("one request has {one} elements, fewer than {least} for each rank"),
                )
            }),
            Condition::PeerAccess(wanted) => {
                let has = !matches!(group.peers, Peers::Refused(_));
                decide(
                    has == *wanted,
                    if *wanted {
                        "no peer access".to_string()
                    } else {
                        "for groups without peer access".to_string()
                    },
                )
            }
            Condition::PeersUnused(wanted) => {
                let unused = !matches!(group.peers, Peers::Proven(_));
                decide(
                    unused == *wanted,
                    if *wanted {
                        "used only where peers are not".to_string()
                    } else {
                        "peers are not used here".to_string()
                    },
                )
            }
            Condition::Proven(rung) => {
                let proven = self.evidence.is_some_and(|e| {
                    // Right pairs are no proof of more ranks at once.
                    let together = *rung < Rung::Reduced || e.reduces_together(&group.gpus);
                    together
                        && !group.pairs.is_empty()
                        && group
                            .pairs
                            .iter()
                            .all(|p| rung_reached(e, *p).is_some_and(|r| r >= *rung))
                });
                decide(proven, format!("needs rung {rung} proven on every pair"))
            }
            Condition::CudaGraphs(wanted) => decide(
                self.request.eager != *wanted,
                if *wanted {
                    "needs CUDA graphs, and the question says eager".to_string()
                } else {
                    "for eager mode".to_string()
                },
            ),
            Condition::PatchedDriver(_) if self.evidence.is_none() => {
                Met::Unknown("the GPUs are not known".to_string())
            }
            Condition::PatchedDriver(wanted) => decide(
                group.patched == *wanted,
                "no GeForce GPUs with PCIe peer access".to_string(),
            ),
            Condition::PlainTensorParallel(wanted) => decide(
                self.request.plain_tensor_parallel() == *wanted,
                if *wanted {
                    "not offered with attention data parallelism or expert parallelism: their reductions belong to other groups, and the attention group is NCCL's".to_string()
                } else {
                    "for attention data parallelism or expert parallelism".to_string()
                },
            ),
            Condition::EngineVersion(range) => match &self.request.engine_version {
                None => Met::Untold(format!("version {range} (--engine-version tells)")),
                Some(version) => decide(
                    range.holds(version),
                    format!("needs version {range}; this is {version}"),
                ),
            },
            Condition::EngineOption(text) => Met::Untold(text.clone()),
        }
    }

    fn compute(
        &self,
        fits: impl Fn((u32, u32)) -> bool,
        reason: impl Fn((u32, u32)) -> String,
    ) -> Met {
        let group = self.group;
        if group.compute.len() < group.gpus.len() {
            return Met::Unknown("compute capability is not known".to_string());
        }
        group
            .compute
            .iter()
            .find(|c| !fits(**c))
            .map_or(Met::Yes, |c| Met::No(reason(*c)))
    }

    /// The row of size limits that holds for this group.
    pub(super) fn cap<'b>(&self, backend: &'b Backend) -> Option<&'b Cap> {
        let world = self.group.world();
        backend.caps.iter().find(|cap| {
            cap.world.contains(&world)
                && (cap.compute.is_empty()
                    || (!self.group.compute.is_empty()
                        && self.group.compute.iter().all(|c| cap.compute.contains(c))))
        })
    }

    fn over_cap(&self, backend: &Backend) -> Option<Refusal> {
        if backend.caps.is_empty() {
            return None;
        }
        let Some(cap) = self.cap(backend) else {
            return Some(Refusal::Refused(
                "no size table for this group size and compute capability".to_string(),
            ));
        };
        let payload = self.sizing?.payload_bytes;
        if payload > cap.max_bytes {
            return Some(Refusal::TooLarge(format!(
                "takes up to {} bytes here; a full decode step has {}",
                grouped(cap.max_bytes),
                grouped(payload)
            )));
        }
        let (low, high) = cap.hole_bytes?;
        (payload > low && payload < high).then(|| {
            Refusal::TooLarge(format!(
                "leaves payloads between {} and {} bytes to others; a full decode step has {}",
                grouped(low),
                grouped(high),
                grouped(payload)
            ))
        })
    }
}

fn listed(numbers: &[u32]) -> String {
    let words: Vec<String> = numbers.iter().map(u32::to_string).collect();
    words.join(", ")
}

/// Conditions that need no host to be judged.
fn is_arithmetic(condition: &Condition) -> bool {
    matches!(
        condition,
        Condition::WorldSize(_)
            | Condition::Dtype(_)
            | Condition::PayloadAtLeast(_)
            | Condition::PayloadAtMost(_)
            | Condition::ElementsMultipleOf(_)
            | Condition::ElementsPerRankAtLeast(_)
            | Condition::CudaGraphs(_)
            | Condition::PlainTensorParallel(_)
            | Condition::EngineVersion(_)
    )
}
