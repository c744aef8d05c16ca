//! Rung 0: what CUDA and NVML claim of peer access, and what enabling it came to. Reads claims, tries nothing.

use super::{
    mechanism::Place,
    wire::{Advertised, Opened},
};
use crate::model::{
    case::Outcome,
    pair::OrderedPair,
    snapshot::{CudaClaims, Snapshot},
};
use std::collections::BTreeMap;

/// Claims of all pairs of a run.
pub(super) struct Claims<'a> {
    snapshot: &'a Snapshot,
    /// What CUDA advertises: access of the first GPU's context to the second's memory.
    advertised: BTreeMap<OrderedPair, Advertised>,
    /// What enabling answered where it was refused: the driver's name and code.
    refused: BTreeMap<OrderedPair, (String, u32)>,
}

impl<'a> Claims<'a> {
    /// Nothing was asked yet.
    pub(super) fn new(snapshot: &'a Snapshot) -> Self {
        Claims {
            snapshot,
            advertised: BTreeMap::new(),
            refused: BTreeMap::new(),
        }
    }

    /// Takes in what a worker found when it opened.
    pub(super) fn learn(&mut self, opened: &Opened) {
        self.advertised.extend(opened.advertised.iter().cloned());
        let refused = opened.refused.iter();
        self.refused
            .extend(refused.map(|(pair, name, code)| (*pair, (name.clone(), *code))));
    }

    /// What CUDA claims of the pairs that it was asked about, to be kept with the readings.
    pub(super) fn of_cuda(&self) -> Vec<(OrderedPair, CudaClaims)> {
        let all = self.advertised.iter();
        all.map(|(pair, advertised)| (*pair, advertised.claims.clone()))
            .collect()
    }

    /// Whether any pair is advertised.
    pub(super) fn any_access(&self) -> bool {
        self.advertised.values().any(|a| a.can_access)
    }

    /// Why a transfer that needs access of `accessor.source` to memory of `accessor.destination` is not tried; nothing
    /// when it can be.
    pub(super) fn hinders(&self, accessor: OrderedPair, place: Place) -> Option<Outcome> {
        // What contexts were refused says nothing about memory that is granted.
        if place != Place::Granted
            && let Some((name, code)) = self.refused.get(&accessor)
        {
            return Some(Outcome::Refused {
                api: "cuCtxEnablePeerAccess".to_string(),
                code: *code,
                name: name.clone(),
            });
        }
        match self.advertised.get(&accessor) {
            Some(advertised) if advertised.can_access => None,
            Some(_) => Some(Outcome::NotApplicable {
                reason: self.no_access_words(accessor),
            }),
            None => Some(Outcome::NotRun {
                reason: "the driver was not asked about this pair".to_string(),
            }),
        }
    }

    fn no_access_words(&self, pair: OrderedPair) -> String {
        let claims = self.snapshot.claims.get(pair);
        let status = |reading: &crate::model::reading::Reading<String>| reading.known().cloned();
        match claims.and_then(|c| Some((status(&c.p2p_read)?, status(&c.p2p_write)?))) {
            Some((read, write)) if read == write => {
                format!("no peer access: CUDA says no, NVML says {read}")
            }
            Some((read, write)) => {
                format!("no peer access: CUDA says no, NVML says {read} (read), {write} (write)")
            }
            None => "no peer access: CUDA says no".to_string(),
        }
    }

    /// What the claims of CUDA and NVML come to, together.
    pub(super) fn outcome(&self, pair: OrderedPair) -> Outcome {
        if let Some((name, code)) = self.refused.get(&pair) {
            return Outcome::Refused {
                api: "cuCtxEnablePeerAccess".into(),
                code: *code,
                name: name.clone(),
            };
        }
        let claims = self.snapshot.claims.get(pair);
        let nvml = claims
            .and_then(|c| Some((c.p2p_read.known()?.as_str(), c.p2p_write.known()?.as_str())));
        match (self.advertised.get(&pair).map(|a| a.can_access), nvml) {
            (None, _) => Outcome::NotRun {
                reason: "the driver was not asked about this pair".to_string(),
            },
            (Some(true), None | Some(("OK", "OK"))) => Outcome::Intact,
            (Some(true), Some((read, write))) => Outcome::Refused {
                api: "nvmlDeviceGetP2PStatus".to_string(),
                code: 0,
                name: format!("CUDA says yes, NVML says {read} (read), {write} (write)"),
            },
            (Some(false), Some(("OK", "OK"))) => Outcome::Refused {
                api: "cuDeviceCanAccessPeer".to_string(),
                code: 0,
                name: "NVML says OK, CUDA says no".to_string(),
            },
            (Some(false), _) => Outcome::NotApplicable {
                reason: self.no_access_words(pair),
            },
        }
    }
}
