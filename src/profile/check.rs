//! What a well-formed profile must not say: names that are none, rows without a source, and peer paths that nothing
//! switches off.

use super::{
    Backend, Clause, Condition, EngineProfile, HostClass, ModelProfile, NvlinkRate, Switch,
    SwitchKind, host, load::ProfileError,
};
use std::path::Path;

/// Where a complaint points to: a text and how often it must have occurred before.
struct At<'a> {
    file: &'a str,
    text: &'a str,
}

impl At<'_> {
    /// The complaint, at the line of the `nth` (from 0) line that begins with `needle`; at line 1 when there is none.
    fn error(&self, needle: &str, nth: usize, message: String) -> ProfileError {
        let line = self
            .text
            .lines()
            .enumerate()
            .filter(|(_, line)| line.trim_start().starts_with(needle))
            .nth(nth)
            .or_else(|| {
                self.text
                    .lines()
                    .enumerate()
                    .find(|(_, line)| line.contains(needle))
            })
            .map_or(1, |(at, _)| at + 1);
        ProfileError::Malformed {
            file: self.file.to_string(),
            line,
            message,
        }
    }
}

/// What one file may not say, before it is joined with what it continues.
pub(super) fn engine_file(
    file: &str,
    text: &str,
    engine: &EngineProfile,
) -> Result<(), ProfileError> {
    let at = At { file, text };
    let stem = Path::new(file).file_stem().and_then(|s| s.to_str());
    if stem != Some(engine.id.as_str()) {
        let message = format!(
            "id '{}' is not the file's name (allowed: '{}')",
            engine.id,
            stem.unwrap_or_default()
        );
        return Err(at.error("id =", 0, message));
    }
    date(&at, &engine.checked, 0)?;
    let mut seen: Vec<&str> = Vec::new();
    for backend in &engine.backends {
        let own = format!("id = \"{}\"", backend.id);
        if seen.contains(&backend.id.as_str()) {
            return Err(at.error(&own, 1, format!("backend '{}' twice", backend.id)));
        }
        seen.push(&backend.id);
        let told = |message: String| at.error(&own, 0, message);
        if backend.id.is_empty() || !kebab(&backend.id) {
            return Err(told(format!(
                "backend id '{}' (allowed: lower-case letters, digits and '-')",
                backend.id
            )));
        }
        if backend.source.trim().is_empty() {
            return Err(told(format!("backend '{}' has no source", backend.id)));
        }
        if !backend.by_default && backend.turn_on.is_empty() {
            return Err(told(format!(
                "backend '{}' is not on by default and has no turn-on",
                backend.id
            )));
        }
        if let Some(wrong) = backend.when.iter().find_map(empty_list) {
            return Err(told(format!("backend '{}': {wrong}", backend.id)));
        }
        for cap in &backend.caps {
            let bad = match cap.hole_bytes {
                _ if cap.world.is_empty() => Some("a cap for no group size".to_string()),
                _ if cap.max_bytes == 0 => Some("a cap of 0 bytes".to_string()),
                Some((low, high)) if low >= high || high > cap.max_bytes => Some(format!(
                    "hole-bytes [{low}, {high}] (allowed: two sizes in ascending order, not above max-bytes)"
                )),
                _ => None,
            };
            if let Some(bad) = bad {
                return Err(told(format!("backend '{}': {bad}", backend.id)));
            }
        }
    }
    let switches = engine
        .backends
        .iter()
        .flat_map(|b| b.turn_on.iter().chain(&b.turn_off))
        .chain(&engine.peer_off)
        .chain(engine.traps.iter().flat_map(|t| &t.set));
    for switch in switches {
        if let Some(message) = bad_switch(switch) {
            let needle = format!("name = \"{}\"", switch.name);
            return Err(at.error(&needle, 0, message));
        }
    }
    traps(&at, engine)?;
    ways(&at, engine)
}

fn ways(at: &At, engine: &EngineProfile) -> Result<(), ProfileError> {
    let mut seen: Vec<&str> = Vec::new();
    for way in &engine.ways {
        let own = format!("id = \"{}\"", way.id);
        let told = |message: String| Err(at.error(&own, 0, message));
        if seen.contains(&way.id.as_str()) {
            return Err(at.error(&own, 1, format!("way '{}' twice", way.id)));
        }
        seen.push(&way.id);
        if way.needs.is_empty() && way.untested.is_none() {
            return told(format!(
                "way '{}' has neither needs nor untested, so nothing could be said of it",
                way.id
            ));
        }
        if way
            .needs
            .iter()
            .any(|need| need.one_of.iter().any(Vec::is_empty))
        {
            return told(format!(
                "way '{}': an empty set of mechanisms proves nothing",
                way.id
            ));
        }
        if way.source.trim().is_empty() || way.because.trim().is_empty() {
            return told(format!("way '{}' has no source or no reason", way.id));
        }
        let clauses = way.when.iter().chain(&way.unless);
        if let Some(name) = clauses
            .flat_map(flags_of)
            .find(|name| !name.starts_with('-'))
        {
            return told(format!(
                "way '{}': flag '{name}' (allowed: with its dashes)",
                way.id
            ));
        }
        if let Some(message) = way.off.iter().find_map(bad_switch) {
            return told(format!("way '{}': {message}", way.id));
        }
    }
    Ok(())
}

/// Flags that a clause names.
fn flags_of(clause: &Clause) -> Vec<String> {
    match clause {
        Clause::Flag(names) | Clause::NoFlag(names) => names.clone(),
        Clause::FlagIs(named) | Clause::FlagIsNot(named) => vec![named.name.clone()],
        _ => Vec::new(),
    }
}

fn traps(at: &At, engine: &EngineProfile) -> Result<(), ProfileError> {
    let mut seen: Vec<&str> = Vec::new();
    for trap in &engine.traps {
        let own = format!("id = \"{}\"", trap.id);
        if seen.contains(&trap.id.as_str()) {
            return Err(at.error(&own, 1, format!("trap '{}' twice", trap.id)));
        }
        seen.push(&trap.id);
        if trap.when.is_empty() && trap.host.is_empty() {
            let message = format!(
                "trap '{}' holds for every launch: give it a clause in 'when' or a condition in 'host'",
                trap.id
            );
            return Err(at.error(&own, 0, message));
        }
        let flags = trap.when.iter().flat_map(flags_of);
        if let Some(name) = flags.into_iter().find(|name| !name.starts_with('-')) {
            let message = format!(
                "trap '{}': flag '{name}' (allowed: with its dashes)",
                trap.id
            );
            return Err(at.error(&own, 0, message));
        }
    }
    Ok(())
}

/// What an engine with all that it continues may not say.
pub(super) fn whole_engine(file: &str, engine: &EngineProfile) -> Result<(), ProfileError> {
    let invalid = |message: String| ProfileError::Invalid {
        file: file.to_string(),
        message,
    };
    let fallback = engine
        .backends
        .iter()
        .any(|b| b.by_default && b.when.is_empty() && b.caps.is_empty());
    if !fallback {
        return Err(invalid(
            "needs one backend that is on by default and has no preconditions, for all other hosts"
                .to_string(),
        ));
    }
    let traps = engine.traps.iter();
    for (trap, id) in traps.flat_map(|t| t.backends.iter().map(move |id| (t, id))) {
        if engine.backend(id).is_none() {
            return Err(invalid(format!(
                "trap '{}': backend '{id}' is none of this engine's",
                trap.id
            )));
        }
    }
    // A veto of data integrity must reach every consumer: a peer path without an entry would stay on.
    for backend in engine.backends.iter().filter(|b| b.peer) {
        if !switched_off(engine, backend) {
            return Err(invalid(format!(
                "backend '{}' moves data from GPU to GPU, and nothing in peer-off switches it off (allowed: an entry with the name of one of its turn-on or turn-off switches)",
                backend.id
            )));
        }
    }
    Ok(())
}

fn switched_off(engine: &EngineProfile, backend: &Backend) -> bool {
    let own = || backend.turn_on.iter().chain(&backend.turn_off);
    engine
        .peer_off
        .iter()
        .any(|off| own().any(|switch| switch.name == off.name))
}

/// A model's numbers.
pub(super) fn model(file: &str, text: &str, model: &ModelProfile) -> Result<(), ProfileError> {
    let at = At { file, text };
    let own = format!("id = \"{}\"", model.id);
    if model.hidden == Some(0) || model.layers == Some(0) {
        let message = format!(
            "model '{}': a size of 0 (leave the key out when it is unknown)",
            model.id
        );
        return Err(at.error(&own, 0, message));
    }
    if model.source.trim().is_empty() {
        return Err(at.error(&own, 0, format!("model '{}' has no source", model.id)));
    }
    if !is_date(&model.checked) {
        let message = format!(
            "model '{}': checked = '{}' (allowed: YYYY-MM-DD)",
            model.id, model.checked
        );
        return Err(at.error(&own, 0, message));
    }
    Ok(())
}

/// A class of hosts.
pub(super) fn host(file: &str, text: &str, class: &HostClass) -> Result<(), ProfileError> {
    let at = At { file, text };
    let stem = Path::new(file).file_stem().and_then(|s| s.to_str());
    if stem != Some(class.id.as_str()) {
        let message = format!(
            "id '{}' is not the file's name (allowed: '{}')",
            class.id,
            stem.unwrap_or_default()
        );
        return Err(at.error("id =", 0, message));
    }
    date(&at, &class.checked, 0)?;
    for (number, rate) in class.rates.iter().enumerate() {
        if let Some(message) = host::defect(rate) {
            return Err(at.error("[[expect]]", number, message));
        }
    }
    Ok(())
}

/// What an NVLink carries.
pub(super) fn nvlink(file: &str, text: &str, link: &NvlinkRate) -> Result<(), ProfileError> {
    let at = At { file, text };
    let own = format!("version = {}", link.version);
    match () {
        () if link.gb_per_s.is_nan() || link.gb_per_s <= 0.0 => Err(at.error(
            &own,
            0,
            format!("gb-per-s = {} (allowed: above 0)", link.gb_per_s),
        )),
        () if link.source.trim().is_empty() => {
            Err(at.error(&own, 0, format!("NVLink {} has no source", link.version)))
        }
        () => Ok(()),
    }
}

fn date(at: &At, text: &str, nth: usize) -> Result<(), ProfileError> {
    if is_date(text) {
        return Ok(());
    }
    let message = format!("checked = '{text}' (allowed: YYYY-MM-DD)");
    Err(at.error("checked =", nth, message))
}

fn is_date(text: &str) -> bool {
    let parts: Vec<&str> = text.split('-').collect();
    let widths: Vec<usize> = parts.iter().map(|p| p.len()).collect();
    widths == [4, 2, 2] && parts.iter().all(|p| p.bytes().all(|b| b.is_ascii_digit()))
}

fn kebab(id: &str) -> bool {
    id.bytes()
        .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
}

fn empty_list(condition: &Condition) -> Option<&'static str> {
    match condition {
        Condition::WorldSize(sizes) if sizes.is_empty() || sizes.contains(&0) => {
            Some("world-size (allowed: one or more sizes from 1)")
        }
        Condition::Fabric(classes) if classes.is_empty() => {
            Some("fabric (allowed: one or more classes)")
        }
        Condition::Dtype(types) if types.is_empty() => Some("dtype (allowed: bf16, fp16, fp32)"),
        Condition::ComputeCapability(all) if all.is_empty() => {
            Some("compute-capability (allowed: one or more [major, minor])")
        }
        Condition::ElementsMultipleOf(0) => Some("elements-multiple-of (allowed: from 1)"),
        Condition::EngineVersion(range) if range.from.is_none() && range.before.is_none() => {
            Some("engine-version (allowed: 'from', 'before' or both)")
        }
        _ => None,
    }
}

fn bad_switch(switch: &Switch) -> Option<String> {
    let name = &switch.name;
    if switch.because.trim().is_empty() || switch.source.trim().is_empty() {
        return Some(format!("switch '{name}' has no reason or no source"));
    }
    match switch.kind {
        SwitchKind::Flag | SwitchKind::Omit if !name.starts_with('-') => Some(format!(
            "flag '{name}' (allowed: a name that begins with a dash)"
        )),
        SwitchKind::Environment | SwitchKind::Unset if !is_variable(name) => Some(format!(
            "variable '{name}' (allowed: letters, digits and '_', no digit first)"
        )),
        SwitchKind::Environment | SwitchKind::Configuration if switch.value.is_none() => {
            Some(format!("'{name}' is to be set and has no value"))
        }
        SwitchKind::Unset if switch.value.is_some() => {
            Some(format!("'{name}' is to be unset and has a value"))
        }
        _ => None,
    }
}

/// Whether a shell takes `name` for a variable.
fn is_variable(name: &str) -> bool {
    !name.is_empty()
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}
