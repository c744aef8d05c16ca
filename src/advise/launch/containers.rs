//! Compose files and Kubernetes manifests: every container that starts a known engine, by its command or by an image of it.

use super::{
    devices::Given,
    document::Node,
    read::{Engines, Invocation, assignment, guess, is_flag, only_a_shell},
    script::{Script, bytes, given},
    shell::{self, Values, Word},
};

/// Every container of a compose file or manifest.
pub(super) fn launches(root: &Node, engines: &Engines) -> Result<Vec<Invocation>, shell::Unclosed> {
    let mut found = Vec::new();
    let mut unnamed = Vec::new();
    let host_ipc = |map: &Node| {
        map.get("ipc").and_then(Node::text) == Some("host")
            || map.get("hostIPC").and_then(Node::text) == Some("true")
    };
    let pod_ipc = root
        .maps()
        .into_iter()
        .any(|m| m.get("hostIPC").and_then(Node::text) == Some("true"));
    for map in root.maps() {
        let has = ["environment", "env", "command", "args", "entrypoint"]
            .iter()
            .any(|key| map.get(key).is_some());
        if !has {
            continue;
        }
        let mut invocation = Invocation::default();
        for key in ["environment", "env"] {
            if let Some(node) = map.get(key) {
                variables(node, &mut invocation);
            }
        }
        let mut words = Vec::new();
        if let Some(image) = map.get("image").and_then(Node::text) {
            words.push(Word {
                text: image.to_string(),
                line: 0,
                opaque: false,
            });
        }
        for key in ["entrypoint", "command", "args"] {
            if let Some(node) = map.get(key) {
                words.extend(as_words(node)?);
            }
        }
        let inner = words.windows(2).position(|w| {
            matches!(w, [a, b] if matches!(a.text.rsplit('/').next(), Some("sh" | "bash"))
                && is_flag(&b.text) && b.text.ends_with('c'))
        });
        let mut nested = Vec::new();
        if let Some(text) = inner.and_then(|at| words.get(at + 2)) {
            let mut script = Script::new(engines, invocation.variables.clone());
            script.does_not_know(&invocation.unknown);
            script.run(&text.text, 1)?;
            nested = script.finish();
        }
        let shared =
            host_ipc(map) || pod_ipc || map.get("shm_size").is_some() || mounts_shared_memory(map);
        let name = map
            .get("container_name")
            .or_else(|| map.get("name"))
            .and_then(Node::text)
            .map_or_else(|| service(root, map), |n| Some(n.to_string()))
            .unwrap_or_else(|| "of the file".to_string());
        if map.get("env_file").is_some() || map.get("envFrom").is_some() {
            invocation.variables_open = true;
            invocation
                .unread
                .push("variables of other files: check them with --check-file".to_string());
        }
        invocation.isolated_shared_memory = !shared;
        let whole = host_ipc(map) || pod_ipc || mounts_shared_memory(map);
        let size = map.get("shm_size").filter(|_| !whole);
        invocation.shared_memory = size.and_then(Node::text).and_then(bytes);
        invocation.devices = devices(map).or_else(|| {
            let list = invocation.variables.get("NVIDIA_VISIBLE_DEVICES")?;
            given(&format!("device={list}")).filter(|_| list != "all")
        });
        invocation.place = format!("container {name}");
        if let Some((engine, place)) = engines.started(&words) {
            let switches = engines.ends_with_program(&engine);
            invocation.engine = Some(engine);
            let own = words.get(place..).unwrap_or_default();
            invocation.flags_from(own, switches.as_deref());
        } else if let Some(first) = nested.into_iter().next() {
            // The command is the script's; where it runs is the container's.
            invocation.unread.extend(first.unread);
            invocation = Invocation {
                place: invocation.place,
                devices: invocation.devices,
                isolated_shared_memory: invocation.isolated_shared_memory,
                shared_memory: invocation.shared_memory,
                variables_open: invocation.variables_open || first.variables_open,
                unread: invocation.unread,
                ..first
            };
        } else {
            // A fragment may leave the command out and hold only what goes behind it.
            let image = map.get("image").and_then(Node::text);
            let own = words
                .get(usize::from(image.is_some())..)
                .unwrap_or_default();
            let begins = own.first().is_some_and(|w| is_flag(&w.text));
            let guessed = guess(&invocation.variables, engines);
            // NCCL's variables stand beside every engine, and name none.
            let named = engines
                .wanted()
                .or_else(|| engines.of_image(image?))
                .or_else(|| guessed.clone().filter(|id| id != "nccl"));
            match named.filter(|_| begins) {
                Some(engine) => {
                    let switches = engines.ends_with_program(&engine);
                    invocation.engine = Some(engine);
                    invocation.flags_from(own, switches.as_deref());
                }
                None => {
                    invocation.no_launch = true;
                    invocation.engine = guessed;
                    if begins && (invocation.engine.is_some() || engines.has_flag_of(own)) {
                        let flags = own.iter().filter(|w| is_flag(&w.text));
                        let flags: Vec<&str> = flags.map(|w| w.text.as_str()).collect();
                        invocation.unread.push(format!(
                            "its arguments ({}) stand without a command, and nothing names the engine that they are for: --engine NAME tells it",
                            flags.join(" ")
                        ));
                        unnamed.push(invocation);
                        continue;
                    }
                }
            }
        }
        if invocation.engine.is_some() {
            found.push(invocation);
        }
    }
    // What stands beside launches that are known is a helper's.
    unnamed.retain(|one: &Invocation| found.is_empty() || one.engine.is_some());
    found.append(&mut unnamed);
    Ok(found)
}

/// The key below which a compose file keeps this service.
fn service(root: &Node, wanted: &Node) -> Option<String> {
    let Some(Node::Map(services)) = root.get("services") else {
        return None;
    };
    services
        .iter()
        .find(|(_, _, value)| std::ptr::eq(value, wanted))
        .map(|(key, ..)| key.clone())
}

fn mounts_shared_memory(map: &Node) -> bool {
    let Some(Node::List(mounts)) = map.get("volumeMounts").or_else(|| map.get("volumes")) else {
        return false;
    };
    mounts.iter().any(|m| {
        m.get("mountPath").and_then(Node::text) == Some("/dev/shm")
            || m.text().is_some_and(|t| t.contains("/dev/shm"))
    })
}

fn variables(node: &Node, into: &mut Invocation) {
    match node {
        Node::Map(entries) => {
            for (key, _, value) in entries {
                match value.text() {
                    // Compose hands on its own where nothing stands.
                    Some("") => {
                        let said = format!("{key} is empty, or comes from elsewhere");
                        into.unknown.insert(key.clone(), said);
                    }
                    Some(text) => variable(key, text, into),
                    None => {}
                }
            }
        }
        Node::List(items) => {
            for item in items {
                let name = item.get("name").and_then(Node::text);
                let value = item.get("value").and_then(Node::text);
                match (item.text().and_then(assignment), name.or(item.text())) {
                    (Some((name, value)), _) => variable(name, value, into),
                    (None, Some(name)) => match value {
                        Some(value) => variable(name, value, into),
                        None => {
                            let said = format!("the value of {name} comes from elsewhere");
                            into.unknown.insert(name.to_string(), said);
                        }
                    },
                    (None, None) => {}
                }
            }
        }
        Node::Scalar(..) => {}
    }
}

fn variable(name: &str, value: &str, into: &mut Invocation) {
    if is_filled_in(value) {
        let said = only_a_shell(&format!("{name}={value}"), 0);
        into.unknown.insert(name.to_string(), said);
    }
    into.variables.insert(name.to_string(), unescaped(value));
}

/// `$NAME`, `${NAME}` and `$(NAME)` are filled in from elsewhere; `$$` is a dollar.
fn is_filled_in(text: &str) -> bool {
    text.replace("$$", "").contains('$')
}

/// The GPUs of a compose service (`gpus`, `deploy` ... `devices`) or of a Kubernetes container (`nvidia.com/gpu`).
fn devices(map: &Node) -> Option<Given> {
    if let Some(text) = map.get("gpus").and_then(Node::text) {
        return given(text);
    }
    let limits = map.get("resources").and_then(|r| {
        let of = |key: &str| r.get(key)?.get("nvidia.com/gpu")?.text()?.parse().ok();
        of("limits").or_else(|| of("requests"))
    });
    if let Some(count) = limits {
        return Some(Given::Count(count));
    }
    for request in map.get("deploy")?.maps() {
        if let Some(Node::List(ids)) = request.get("device_ids") {
            let names = ids.iter().filter_map(Node::text).map(str::to_string);
            return Some(Given::Named(names.collect()));
        }
        if let Some(count) = request.get("count").and_then(Node::text) {
            return count.parse().ok().map(Given::Count);
        }
    }
    None
}

/// Compose files write `$` twice where one is meant.
fn unescaped(text: &str) -> String {
    text.replace("$$", "$")
}

fn as_words(node: &Node) -> Result<Vec<Word>, shell::Unclosed> {
    match node {
        Node::Scalar(text, line) => {
            let mut words = Vec::new();
            for command in shell::commands(text).map_err(|e| shell::Unclosed {
                line: line + e.line.saturating_sub(1),
                what: e.what,
            })? {
                words.extend(command.words(&Values::new()));
            }
            Ok(words)
        }
        Node::List(items) => Ok(items
            .iter()
            .filter_map(|item| match item {
                Node::Scalar(text, line) => Some(Word {
                    text: unescaped(text),
                    line: *line,
                    // A script in one word is read as one, where each of its words is looked at.
                    opaque: is_filled_in(text) && !text.contains(char::is_whitespace),
                }),
                _ => None,
            })
            .collect()),
        Node::Map(_) => Ok(Vec::new()),
    }
}
