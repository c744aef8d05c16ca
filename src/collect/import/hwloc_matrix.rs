//! hwloc's NVLink bandwidth matrix (`distances2`, `distances2hetero`) as link lists of GPUs. In the hetero form a cell of
//! 0 between two GPUs means "through a switch", not "no link"; the diagonal means nothing.

use super::{error::ImportError, hwloc_xml::MatrixEnd, xml::Xml};
use crate::{
    collect::chips,
    model::{
        reading::Reading,
        snapshot::{NvLink, NvLinkEnd, Snapshot},
    },
};
use roxmltree::Node;
use std::collections::BTreeMap;

/// Most objects of a matrix: far beyond the 64 or so of any host.
const MAX_OBJECTS: usize = 1024;
/// Most links of one GPU that are believed; parts have up to 18.
const MAX_LINKS: u64 = 72;
/// Rate of one link in MB/s where the part is not known.
const USUAL_LINK: u64 = 25_000;

type Ends = BTreeMap<(String, u64), MatrixEnd>;

pub(super) fn read(
    xml: &Xml<'_>,
    root: Node<'_, '_>,
    ends: &Ends,
    snapshot: &mut Snapshot,
) -> Result<(), ImportError> {
    let matrices = root.children().filter(|n| {
        matches!(n.tag_name().name(), "distances2" | "distances2hetero")
            && n.attribute("name") == Some("NVLinkBandwidth")
    });
    for matrix in matrices {
        one(xml, matrix, ends, snapshot)?;
    }
    Ok(())
}

fn one(
    xml: &Xml<'_>,
    matrix: Node<'_, '_>,
    ends: &Ends,
    snapshot: &mut Snapshot,
) -> Result<(), ImportError> {
    let default_kind = matrix.attribute("type").unwrap_or("OSDev");
    let mut objects: Vec<Option<MatrixEnd>> = Vec::new();
    let mut values: Vec<u64> = Vec::new();
    for child in matrix.children().filter(Node::is_element) {
        let words = child.text().unwrap_or("").split_ascii_whitespace();
        match child.tag_name().name() {
            "indexes" => {
                for word in words {
                    let (kind, index) = word.split_once(':').unwrap_or((default_kind, word));
                    let index: u64 = index.parse().map_err(|_| {
                        xml.error(
                            child,
                            "an index of the NVLink matrix is not a number; export it again",
                        )
                    })?;
                    let found = ends.get(&(kind.to_string(), index)).copied();
                    // Switches may be in the matrix without a PCI object in the file.
                    objects.push(found);
                    if objects.len() > MAX_OBJECTS {
                        return Err(xml.error(child, "an NVLink matrix of more than 1024 objects"));
                    }
                }
            }
            "u64values" => {
                for word in words {
                    values.push(word.parse().map_err(|_| {
                        xml.error(
                            child,
                            "a value of the NVLink matrix is not a number; export it again",
                        )
                    })?);
                    if values.len() > MAX_OBJECTS * MAX_OBJECTS {
                        return Err(xml.error(child, "an NVLink matrix of more than 1024 objects"));
                    }
                }
            }
            _ => {}
        }
    }
    let count = objects.len();
    if values.len() != count * count {
        return Err(xml.error(
            matrix,
            format!(
                "the NVLink matrix has {count} objects but {} values; the file was cut or edited",
                values.len()
            ),
        ));
    }
    let hetero = matrix.has_tag_name("distances2hetero");
    let (mut doubled, mut guessed, mut unresolved) = (false, false, 0);
    for (from, row) in objects.iter().zip(values.chunks(count.max(1))) {
        let Some(MatrixEnd::Gpu(pci)) = from else {
            continue;
        };
        let Some(gpu) = snapshot
            .gpus
            .iter_mut()
            .find(|g| g.pci.known() == Some(pci))
        else {
            continue;
        };
        let part = gpu.identity.known().copied().and_then(chips::part);
        let rate = part.map_or(0, |p| u64::from(p.link_mb_per_s));
        guessed |= rate == 0;
        let rate = if rate == 0 { USUAL_LINK } else { rate };
        let cells: Vec<(Option<MatrixEnd>, u64)> = objects
            .iter()
            .copied()
            .zip(row.iter().copied())
            .filter(|(to, value)| to.as_ref() != from.as_ref() && *value > 0)
            .collect();
        // Older hwloc counted A100 and H100 links twice; only a sum above the part's own total proves it.
        let sum: u64 = cells.iter().fold(0, |a, (_, v)| a.saturating_add(*v));
        let total = part.and_then(|p| p.links).map(|l| u64::from(l) * rate);
        let twice = total.is_some_and(|t| t > 0 && sum > t);
        doubled |= twice;
        let mut links: Vec<NvLink> = Vec::new();
        for (to, value) in cells {
            let value = if twice { value / 2 } else { value };
            let number = (value.saturating_add(rate / 2) / rate).clamp(1, MAX_LINKS);
            let (remote, remote_kind) = match to {
                Some(MatrixEnd::Gpu(pci)) => (Some(pci), NvLinkEnd::Gpu),
                Some(MatrixEnd::Switch(pci)) => (Some(pci), NvLinkEnd::Switch),
                Some(MatrixEnd::Cpu) => (None, NvLinkEnd::Cpu),
                None => {
                    unresolved += 1;
                    let kind = if hetero {
                        NvLinkEnd::Switch
                    } else {
                        NvLinkEnd::Unknown
                    };
                    (None, kind)
                }
            };
            for _ in 0..number {
                links.push(NvLink {
                    link: u32::try_from(links.len()).unwrap_or(u32::MAX),
                    active: true,
                    version: None,
                    raw_gb_per_s: Some(rate as f64 / 1000.0),
                    remote,
                    remote_kind,
                    errors: None,
                });
            }
        }
        gpu.nvlinks = Reading::Known(links);
    }
    let notes = &mut snapshot.topology.notes;
    if doubled {
        notes.push("the NVLink matrix is twice what the part can carry (older hwloc counted links twice): halved".to_string());
    }
    if guessed {
        notes.push("link counts are taken from the NVLink matrix at 25 GB/s a link, because the part is not known".to_string());
    }
    if unresolved > 0 && hetero {
        notes.push(
            "some NVSwitches of the NVLink matrix have no PCI object in the file".to_string(),
        );
    }
    Ok(())
}
