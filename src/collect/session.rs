//! The collector worker: NVML and hwloc can block for minutes, so the parent asks them through a process under a
//! deadline. It stays open as observer for as long as the parent wants. Both ends of its protocol are here.

use super::{
    hwloc,
    live::{self, Depth, Roots},
    nvml,
    observe::Observer,
    system,
};
use crate::{
    child::{Child, ReceiveError},
    model::{
        reading::Absence,
        snapshot::{Observation, Snapshot},
    },
};
use serde::{Deserialize, Serialize};
use std::{
    io::{BufRead, Write},
    path::PathBuf,
    time::{Duration, Instant},
};

/// Hidden subcommand of the collector.
pub const COLLECTOR: &str = "collector";
/// A first answer: NVML's initialisation starts every GPU of the host where persistence mode is off.
const COLLECT_LIMIT: Duration = Duration::from_secs(120);
/// A look at counters.
const OBSERVE_LIMIT: Duration = Duration::from_secs(10);
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Ask {
    Collect { root: Option<PathBuf>, depth: Depth },
    Observe { moment: String, ours: Vec<u32> },
}

/// The parent's end.
pub struct Session {
    child: Option<Child>,
    /// GPUs of the snapshot.
    gpus: usize,
}

impl Session {
    /// Starts the collector and reads the host.
    ///
    /// # Errors
    /// One sentence: the collector could not start, died or did not answer in time.
    pub fn start(roots: &Roots, depth: Depth) -> Result<(Session, Snapshot), String> {
        let environment = [
            (
                hwloc::COMPONENTS_VARIABLE.to_string(),
                Some(hwloc::COMPONENTS_VALUE.to_string()),
            ),
            // A topology file of the operator's would stand in for this host.
            ("HWLOC_XMLFILE".to_string(), None),
            ("HWLOC_SYNTHETIC".to_string(), None),
        ];
        let mut child =
            Child::spawn(&[COLLECTOR.to_string()], &environment).map_err(|e| e.to_string())?;
        let ask = Ask::Collect {
            root: roots.root.clone(),
            depth,
        };
        child.send(&ask).map_err(|e| e.to_string())?;
        let mut snapshot: Snapshot = child
            .receive(Instant::now() + COLLECT_LIMIT)
            .map_err(|error| match error {
                ReceiveError::TimedOut => format!(
                    "NVML, hwloc or /sys did not answer within {} s: the driver may be stuck (see 'dmesg')",
                    COLLECT_LIMIT.as_secs()
                ),
                other => format!("the host could not be read: {other}"),
            })?;
        // The collector's environment is partly ours; what counts is what the operator had.
        snapshot.environment = system::own_steering_variables();
        let session = Session {
            child: Some(child),
            gpus: snapshot.gpus.len(),
        };
        Ok((session, snapshot))
    }

    /// Ends the collector without waiting for it: NVML takes milliseconds to let its devices go.
    pub fn leave(self) {
        if let Some(child) = self.child {
            child.abandon();
        }
    }

    /// Looks at the counters of all GPUs; nothing when the observer has gone. One that does not answer in time has seen no GPU
    /// answer, and is gone afterwards.
    pub fn observe(&mut self, moment: &str, ours: &[u32]) -> Option<Observation> {
        let child = self.child.as_mut()?;
        let ask = Ask::Observe {
            moment: moment.to_string(),
            ours: ours.to_vec(),
        };
        let seen = child
            .send(&ask)
            .and_then(|()| child.receive(Instant::now() + OBSERVE_LIMIT));
        match seen {
            Ok(observation) => Some(observation),
            Err(ReceiveError::Interrupted) => None,
            Err(error) => {
                // Out of step or stuck: an answer that comes later must not be taken for another question's.
                self.child.take().map(Child::kill);
                let limit = format!("{} s", OBSERVE_LIMIT.as_secs());
                let silent = nvml::unobserved(&Absence::NoAnswer(limit));
                (error == ReceiveError::TimedOut).then(|| Observation {
                    moment: moment.to_string(),
                    gpus: vec![silent; self.gpus],
                    bridges: Vec::new(),
                })
            }
        }
    }
}

/// The collector's end: answers until its input closes.
///
/// # Errors
/// Those of the input.
pub fn serve(input: impl BufRead, mut output: impl Write) -> std::io::Result<()> {
    let mut observer: Option<Observer> = None;
    let mut reply = |line: serde_json::Result<String>| -> std::io::Result<()> {
        writeln!(output, "{}", line?)?;
        output.flush()
    };
    for line in input.lines() {
        match serde_json::from_str::<Ask>(&line?)? {
            Ask::Collect { root, depth } => {
                let (snapshot, opened) = live::collect_and_observe(&Roots { root }, depth);
                observer = Some(opened);
                reply(serde_json::to_string(&snapshot))?;
            }
            Ask::Observe { moment, ours } => {
                let nothing = Observation {
                    moment: moment.clone(),
                    gpus: Vec::new(),
                    bridges: Vec::new(),
                };
                let seen = observer
                    .as_ref()
                    .map_or(nothing, |o| o.observe(&moment, &ours));
                reply(serde_json::to_string(&seen))?;
            }
        }
    }
    Ok(())
}
