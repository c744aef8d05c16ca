//! Our numbers beside another tool's: which of its cells is which of our cases. Pure; both files are as they are.
//!
//! nvbandwidth's cells are read by what its test cases do (facts: peers.md 2.1, and its source): in the write tests row
//! pushes to column, in the read tests row pulls from column. The arrows of its headers point the other way.

use crate::{
    model::{
        measurement::Unit,
        snapshot::Snapshot,
        traffic::{
            ComparedCell, Comparison, Executor, OtherTable, OtherTool, Place, Shape, Streams,
            Traffic, Way,
        },
    },
    stats::median,
};

/// How nvbandwidth's numbers come about.
const THEIR_METHOD: &str = "nvbandwidth: copies queued behind a spin kernel on non-blocking streams, device events, median of 3 by \
                            default; 512 MiB a copy by default; both directions by copy engine: sum of the two rates";

/// What one cell of a test case is, in our terms.
struct Meaning {
    shape: Shape,
    executor: Executor,
    way: Way,
    /// Ends of the cell's flow from row and column.
    ends: fn(u32, u32) -> (Place, Place),
}

/// The meaning of a test case's cells; `None` where we measure no such thing.
fn meaning(name: &str) -> Option<Meaning> {
    let executor = match name.rsplit('_').next()? {
        "ce" => Executor::CopyEngine,
        "sm" => Executor::Multiprocessors,
        _ => return None,
    };
    let forth: fn(u32, u32) -> (Place, Place) = |row, column| (Place::Gpu(row), Place::Gpu(column));
    let back: fn(u32, u32) -> (Place, Place) = |row, column| (Place::Gpu(column), Place::Gpu(row));
    let down: fn(u32, u32) -> (Place, Place) = |_, column| (Place::Host, Place::Gpu(column));
    let up: fn(u32, u32) -> (Place, Place) = |_, column| (Place::Gpu(column), Place::Host);
    let (shape, way, ends) = match name.rsplit_once('_')?.0 {
        "host_to_device_memcpy" => (Shape::OneWay, Way::Pull, down),
        "device_to_host_memcpy" => (Shape::OneWay, Way::Push, up),
        "device_to_device_memcpy_write" => (Shape::OneWay, Way::Push, forth),
        "device_to_device_memcpy_read" => (Shape::OneWay, Way::Pull, back),
        "device_to_device_bidirectional_memcpy_write" => (Shape::BothDirections, Way::Push, forth),
        "device_to_device_bidirectional_memcpy_read" => (Shape::BothDirections, Way::Pull, back),
        "one_to_all_write" => (Shape::OneToMany, Way::Push, up),
        "all_to_one_write" => (Shape::ManyToOne, Way::Push, down),
        _ => return None,
    };
    Some(Meaning {
        shape,
        executor,
        way,
        ends,
    })
}

/// Sets `other` beside `traffic`.
pub fn compare(snapshot: &Snapshot, traffic: &[Traffic], other: &OtherTool) -> Comparison {
    let mut comparison = Comparison {
        tool: other.tool.clone(),
        their_method: THEIR_METHOD.to_string(),
        our_method: our_method(traffic),
        cells: Vec::new(),
        left_out: Vec::new(),
    };
    let gpus = match places(snapshot, other) {
        Ok((gpus, remark)) => {
            comparison.left_out.extend(remark);
            gpus
        }
        Err(why) => {
            comparison.left_out.push(why);
            return comparison;
        }
    };
    for table in &other.tables {
        if let Some(why) = &table.missing {
            let line = format!("{}: nvbandwidth has no numbers ({why})", table.name);
            comparison.left_out.push(line);
        } else if let Some(meaning) = meaning(&table.name) {
            cells(&mut comparison, traffic, table, &meaning, &gpus);
        } else {
            let line = format!("{}: peerproof measures no such thing", table.name);
            comparison.left_out.push(line);
        }
    }
    comparison
}

fn our_method(traffic: &[Traffic]) -> String {
    let largest = traffic
        .iter()
        .filter(|case| case.shape == Shape::BothDirections || case.shape == Shape::OneToMany)
        .map(|case| case.bytes)
        .max();
    let usual = largest.or_else(|| traffic.iter().map(|case| case.bytes).max());
    format!(
        "peerproof: copies queued behind a gate kernel on non-blocking streams, device events, median; {} bytes a copy; several \
         flows: all bytes over the time from the common start to the last end",
        usual.unwrap_or(0)
    )
}

/// Our GPU of each of the other tool's devices, and a remark on how that is known.
fn places(
    snapshot: &Snapshot,
    other: &OtherTool,
) -> Result<(Vec<Option<u32>>, Option<String>), String> {
    let ours = |at: &Option<crate::model::pci::PciAddress>| {
        let at = at.as_ref()?;
        let mut gpus = snapshot.gpus.iter();
        let same = |gpu: &crate::model::snapshot::Gpu| {
            gpu.pci.known().is_some_and(|pci| {
                (pci.domain, pci.bus, pci.device) == (at.domain, at.bus, at.device)
            })
        };
        gpus.position(same).map(|index| index as u32)
    };
    if other.devices.iter().any(Option::is_some) {
        let known: Vec<Option<u32>> = other.devices.iter().map(ours).collect();
        return match known.iter().any(Option::is_some) {
            true => Ok((known, None)),
            false => Err(
                "none of its devices is on this host: their PCI addresses are others".to_string(),
            ),
        };
    }
    let columns = other.tables.iter().flat_map(|table| table.rows.first());
    let widest = columns.map(Vec::len).max().unwrap_or(0);
    if widest > snapshot.gpus.len() {
        return Err(format!(
            "its tables have {widest} columns and this host has {} GPUs",
            snapshot.gpus.len()
        ));
    }
    let remark = "its file names no PCI addresses: devices are taken to be in PCI order, as with CUDA_DEVICE_ORDER=PCI_BUS_ID";
    Ok((
        (0..widest as u32).map(Some).collect(),
        Some(remark.to_string()),
    ))
}

fn cells(
    comparison: &mut Comparison,
    traffic: &[Traffic],
    table: &OtherTable,
    meaning: &Meaning,
    gpus: &[Option<u32>],
) {
    let (mut lone, mut total) = (0, 0);
    for (row, cells) in table.rows.iter().enumerate() {
        for (column, cell) in cells.iter().enumerate() {
            let Some(theirs) = cell.filter(|value| *value > 0.0) else {
                continue;
            };
            total += 1;
            let gpu = |index: usize| gpus.get(index).copied().flatten();
            let one_row = table.rows.len() == 1;
            // Tables over one row have devices in their columns alone.
            let places = gpu(column).and_then(|c| Some((if one_row { c } else { gpu(row)? }, c)));
            let found = places
                .and_then(|(row, column)| find(traffic, meaning, (meaning.ends)(row, column)));
            let Some((case, ours)) = found else {
                lone += 1;
                continue;
            };
            comparison.cells.push(ComparedCell {
                testcase: table.name.clone(),
                subject: case.subject(),
                theirs,
                ours,
                unit: Unit::GbPerS,
                percent: (ours - theirs) / theirs * 100.0,
            });
        }
    }
    if lone > 0 {
        comparison.left_out.push(format!(
            "{}: {lone} of {total} cells have no number of ours",
            table.name
        ));
    }
}

/// Our case of a cell: the one with the longest copies.
fn find<'a>(
    traffic: &'a [Traffic],
    meaning: &Meaning,
    (from, to): (Place, Place),
) -> Option<(&'a Traffic, f64)> {
    let fits = |case: &&Traffic| {
        let flow = |flow: &crate::model::traffic::Flow| match meaning.shape {
            Shape::OneToMany => flow.source == from,
            Shape::ManyToOne => flow.destination == to,
            _ => (flow.source, flow.destination) == (from, to),
        };
        let flows = match meaning.shape {
            Shape::BothDirections => case.flows.iter().any(flow),
            _ => !case.flows.is_empty() && case.flows.iter().all(flow),
        };
        (case.shape, case.executor, case.way, case.streams)
            == (
                meaning.shape,
                meaning.executor,
                meaning.way,
                Streams::NonBlocking,
            )
            && case.unit == Unit::GbPerS
            && flows
    };
    let best = traffic.iter().filter(fits).max_by_key(|case| case.bytes)?;
    Some((best, median(&best.whole)?))
}
