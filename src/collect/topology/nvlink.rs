//! NVLinks of ordered pairs, from link lists and from tables of pairs. Switches are told by their far ends, by the
//! fabric's registration, or by arithmetic: GPUs that claim more links than any part has share them through a switch.

use crate::{
    collect::chips::{self, NvLinkForm},
    model::{
        pair::{OrderedPair, PairTable},
        pci::PciAddress,
        snapshot::{Gpu, NvLinkEnd, Snapshot},
        topology::Disagreement,
    },
};
use std::collections::BTreeMap;

/// No part has more NVLinks (NVLink 4 and 5).
const MOST_LINKS: u32 = 18;

/// The links of one ordered pair.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct PairLinks {
    pub(super) count: u32,
    pub(super) known: bool,
    pub(super) through_nvswitch: bool,
}

/// What one GPU's link list says.
#[derive(Default)]
struct Ends {
    /// Links to GPUs, by position.
    direct: BTreeMap<u32, u32>,
    /// Links to switches.
    switch: u32,
    /// A switch's class with a GPU's address: an all-to-all fabric written as a mesh.
    mesh_of_switch: bool,
    /// Links whose far end is not told.
    untold: u32,
    /// The list was read.
    listed: bool,
    /// Nothing is missing: every far end is told, or the part has no links.
    complete: bool,
}

type Links = PairTable<PairLinks>;

pub(super) fn links(snapshot: &Snapshot) -> (Links, Vec<String>, Vec<Disagreement>) {
    let count = u32::try_from(snapshot.gpus.len()).unwrap_or(0);
    let by_address: BTreeMap<PciAddress, u32> = snapshot
        .gpus
        .iter()
        .zip(0..)
        .filter_map(|(g, n)| g.pci.known().map(|p| (*p, n)))
        .collect();
    let ends: Vec<Ends> = snapshot.gpus.iter().map(|g| ends(g, &by_address)).collect();
    let mut disagreements = Vec::new();
    let stated = |pair: OrderedPair| -> Option<u32> {
        let own = ends.get(pair.source.at())?;
        if own.listed {
            return (own.complete || own.direct.contains_key(&pair.destination.0))
                .then(|| own.direct.get(&pair.destination.0).copied().unwrap_or(0));
        }
        let table = snapshot
            .claims
            .get(pair)
            .and_then(|c| c.nvlink_count.known().copied());
        table.or(own.complete.then_some(0))
    };
    let sums: Vec<u32> = (0..count)
        .map(|s| {
            let pairs = (0..count).filter_map(|d| OrderedPair::new(s, d));
            pairs.filter_map(stated).fold(0, u32::saturating_add)
        })
        .collect();
    let mut through = Vec::new();
    let mut too_many: BTreeMap<(u32, &str, u32, String), Vec<&str>> = BTreeMap::new();
    for ((gpu, own), sum) in snapshot.gpus.iter().zip(&ends).zip(&sums) {
        let part = gpu.identity.known().copied().and_then(chips::part);
        let has = part.and_then(|p| p.links).filter(|l| *l > 0);
        let module = part.is_none_or(|p| p.form == NvLinkForm::Module);
        let most = if module {
            has.unwrap_or(MOST_LINKS)
        } else {
            MOST_LINKS
        };
        through.push(own.mesh_of_switch || *sum > most);
        let limit = has.unwrap_or(MOST_LINKS);
        if own.listed && *sum > limit {
            let what = if *sum > most {
                format!("a switch is taken to lie between; each pair gets at most {limit} links")
            } else {
                "the counts are shown as stated; the file was edited or the part is another"
                    .to_string()
            };
            let part = part.map_or("any part", |p| p.name);
            too_many
                .entry((*sum, part, limit, what))
                .or_default()
                .push(gpu.label.as_str());
        }
    }
    for ((sum, part, limit, what), gpus) in too_many {
        disagreements.push(Disagreement {
            about: format!("NVLinks of {}", gpus.join(", ")),
            claims: vec![
                ("link list".to_string(), format!("{sum} to other GPUs")),
                (part.to_string(), format!("at most {limit}")),
            ],
            resolution: what,
        });
    }
    let mut links = PairTable::new(count);
    for pair in OrderedPair::all(count) {
        links.set(pair, one(snapshot, pair, &ends, &through, &stated));
        asymmetry(pair, &stated, &mut disagreements);
        list_against_table(snapshot, pair, &ends, &links, &mut disagreements);
    }
    let notes = unseen(snapshot, &links);
    (links, notes, disagreements)
}

fn ends(gpu: &Gpu, by_address: &BTreeMap<PciAddress, u32>) -> Ends {
    let mut out = Ends::default();
    let part = gpu.identity.known().copied().and_then(chips::part);
    let Some(list) = gpu.nvlinks.known() else {
        out.complete = part.is_some_and(|p| p.form == NvLinkForm::None)
            || matches!(
                gpu.nvlinks.absence(),
                Some(crate::model::reading::Absence::NotSupported(_))
            );
        return out;
    };
    out.listed = true;
    let registered = gpu
        .fabric
        .known()
        .is_some_and(|f| f.state == "completed" && f.status == 0);
    for link in list.iter().filter(|l| l.active) {
        let peer = link.remote.and_then(|r| by_address.get(&r)).copied();
        match (link.remote_kind, peer) {
            (NvLinkEnd::Switch, Some(peer)) => {
                out.mesh_of_switch = true;
                *out.direct.entry(peer).or_default() += 1;
            }
            (NvLinkEnd::Switch, None) => out.switch += 1,
            (_, Some(peer)) => *out.direct.entry(peer).or_default() += 1,
            (NvLinkEnd::Cpu, None) => {}
            // Registration with the fabric is something only NVSwitch systems do.
            (NvLinkEnd::Unknown, None) if registered => out.switch += 1,
            (NvLinkEnd::Gpu, None) if link.remote.is_some() => {
                // A GPU that is not visible here; the link joins none of ours.
            }
            (NvLinkEnd::Gpu | NvLinkEnd::Unknown, None) => out.untold += 1,
        }
    }
    out.complete = out.untold == 0;
    out
}

fn one(
    snapshot: &Snapshot,
    pair: OrderedPair,
    ends: &[Ends],
    through: &[bool],
    stated: &impl Fn(OrderedPair) -> Option<u32>,
) -> PairLinks {
    let (Some(a), Some(b)) = (ends.get(pair.source.at()), ends.get(pair.destination.at())) else {
        return PairLinks::default();
    };
    let cap = |count: u32| {
        let part = |i: usize| {
            let identity = snapshot.gpus.get(i)?.identity.known().copied()?;
            chips::part(identity)?.links.filter(|l| *l > 0)
        };
        let most = part(pair.source.at())
            .unwrap_or(MOST_LINKS)
            .min(part(pair.destination.at()).unwrap_or(MOST_LINKS));
        count.min(most)
    };
    if a.switch > 0 && b.switch > 0 {
        return PairLinks {
            count: cap(a.switch.min(b.switch)),
            known: true,
            through_nvswitch: true,
        };
    }
    let switched = [pair.source.at(), pair.destination.at()]
        .iter()
        .any(|i| through.get(*i).copied().unwrap_or(false));
    if let Some(count) = stated(pair).or_else(|| stated(pair.reversed())) {
        return PairLinks {
            count: if switched { cap(count) } else { count },
            known: true,
            through_nvswitch: switched && count > 0,
        };
    }
    // Far ends hidden, but the driver says that this pair has NVLink.
    let claimed = snapshot
        .claims
        .get(pair)
        .and_then(|c| c.p2p_nvlink.known())
        .is_some_and(|s| s == "OK");
    if claimed && a.untold > 0 && b.untold > 0 {
        return PairLinks {
            count: cap(a.untold.min(b.untold)),
            known: true,
            through_nvswitch: false,
        };
    }
    PairLinks::default()
}

fn asymmetry(
    pair: OrderedPair,
    stated: &impl Fn(OrderedPair) -> Option<u32>,
    disagreements: &mut Vec<Disagreement>,
) {
    if pair.source > pair.destination {
        return;
    }
    if let (Some(there), Some(back)) = (stated(pair), stated(pair.reversed()))
        && there != back
    {
        disagreements.push(Disagreement {
            about: format!("NVLink count of GPUs {} and {}", pair.source, pair.destination),
            claims: vec![
                (pair.to_string(), there.to_string()),
                (pair.reversed().to_string(), back.to_string()),
            ],
            resolution: "each direction is shown as stated; links are the same both ways, so some are down or the file was edited"
                .to_string(),
        });
    }
}

/// Link lists and a table of pairs, both present.
fn list_against_table(
    snapshot: &Snapshot,
    pair: OrderedPair,
    ends: &[Ends],
    links: &Links,
    disagreements: &mut Vec<Disagreement>,
) {
    let listed = ends.get(pair.source.at()).is_some_and(|e| e.listed);
    let table = snapshot
        .claims
        .get(pair)
        .and_then(|c| c.nvlink_count.known());
    if let (true, Some(table), Some(own)) = (listed, table, links.get(pair))
        && own.known
        && own.count != *table
        && pair.source < pair.destination
    {
        disagreements.push(Disagreement {
            about: format!("NVLink count {pair}"),
            claims: vec![
                ("link list".to_string(), own.count.to_string()),
                ("table of pairs".to_string(), table.to_string()),
            ],
            resolution: "the link list is followed: it names each link".to_string(),
        });
    }
}

/// What the parts have that the input does not show.
fn unseen(snapshot: &Snapshot, links: &Links) -> Vec<String> {
    let mut notes = Vec::new();
    if links.count() < 2 || links.iter().all(|(_, l)| l.known) {
        return notes;
    }
    let mut parts: BTreeMap<&str, (u32, NvLinkForm, Option<u32>)> = BTreeMap::new();
    for gpu in snapshot.gpus.iter().filter(|g| g.nvlinks.known().is_none()) {
        if let Some(part) = gpu.identity.known().copied().and_then(chips::part)
            && part.form != NvLinkForm::None
        {
            parts
                .entry(part.name)
                .or_insert((0, part.form, part.links))
                .0 += 1;
        }
    }
    for (name, (count, form, has)) in parts {
        let number = has.map_or_else(String::new, |n| format!("{n} "));
        notes.push(match form {
            NvLinkForm::Module => format!(
                "{count}x {name}: the part has {number}NVLinks, which the input does not show: not known, not absent"
            ),
            _ => format!(
                "{count}x {name}: the part can be bridged by {number}NVLinks; the input does not show whether it is"
            ),
        });
    }
    let any = links.iter().any(|(_, l)| l.known)
        || snapshot.gpus.iter().any(|g| g.nvlinks.known().is_some());
    if !any {
        notes.push(
            "the input does not show NVLinks: the class is that of the PCIe picture".to_string(),
        );
    }
    notes
}
