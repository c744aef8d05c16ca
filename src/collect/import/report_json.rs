//! A saved report of our own: its snapshot, as it was.

use super::error::ImportError;
use crate::model::{
    report::{Report, SCHEMA_VERSION},
    snapshot::{Origin, Snapshot},
};
use serde::Deserialize;

/// Most `null`s of a report; sixteen GPUs write some thousands.
const MAX_NULLS: usize = 2_000_000;

/// The only field that every version must have; read first, so that a newer document is refused for its version and
/// not for the first field that is new to us.
#[derive(Deserialize)]
struct Version {
    schema_version: u32,
}

pub(super) fn read(file: &str, text: &str) -> Result<Snapshot, ImportError> {
    let place = |error: &serde_json::Error, what: &str| {
        let mut words = error.to_string();
        if let Some(cut) = words.rfind(" at line ") {
            words.truncate(cut);
        }
        let line = u32::try_from(error.line()).unwrap_or(u32::MAX);
        let column = u32::try_from(error.column()).unwrap_or(u32::MAX);
        ImportError::at(file, line.max(1), column.max(1), format!("{what}: {words}"))
    };
    // A null costs five bytes in the file and hundreds in memory.
    if text.matches("null").nth(MAX_NULLS).is_some() {
        return Err(ImportError::whole(
            file,
            "JSON with more than 2,000,000 nulls; no report has as many",
        ));
    }
    let version: Version =
        serde_json::from_str(text).map_err(|e| place(&e, "JSON, but not a peerproof report"))?;
    if version.schema_version > SCHEMA_VERSION {
        return Err(ImportError::whole(
            file,
            format!(
                "a peerproof report of schema version {}; this peerproof reads up to {SCHEMA_VERSION}: use a newer peerproof",
                version.schema_version
            ),
        ));
    }
    let report: Report =
        serde_json::from_str(text).map_err(|e| place(&e, "not a whole peerproof report"))?;
    let mut snapshot = report.snapshot;
    fits(&snapshot).map_err(|what| {
        ImportError::whole(
            file,
            format!("not a whole peerproof report: {what}; was it edited?"),
        )
    })?;
    // What stood below the driver is said twice in a report; the worse of the two counts.
    snapshot.authenticity = match (snapshot.authenticity, report.authenticity) {
        (crate::model::snapshot::Authenticity::Hardware, other) => other,
        (own, _) => own,
    };
    snapshot.origin = Origin::Recorded {
        format: "peerproof-report".to_string(),
        file: file.to_string(),
    };
    Ok(snapshot)
}

/// Tables and indices that do not fit the list of GPUs would mislead all that follows.
fn fits(snapshot: &Snapshot) -> Result<(), String> {
    let gpus = snapshot.gpus.len();
    let tables = [
        ("claims", snapshot.claims.count()),
        ("paths", snapshot.topology.pairs.count()),
    ];
    for (name, count) in tables {
        if count as usize != gpus {
            return Err(format!(
                "the table of {name} is for {count} GPUs, the list has {gpus}"
            ));
        }
    }
    let mut members = snapshot.topology.islands.iter().flat_map(|i| &i.gpus);
    if let Some(stray) = members.find(|g| g.at() >= gpus) {
        return Err(format!("an island names GPU {stray}, the list has {gpus}"));
    }
    match snapshot.nics.iter().find(|n| n.to_gpus.len() > gpus) {
        Some(nic) => Err(format!(
            "NIC {:?} has distances to more GPUs than there are",
            nic.name
        )),
        None => Ok(()),
    }
}
