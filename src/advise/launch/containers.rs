//! Compose files and Kubernetes manifests: every container that starts a known engine, by its command or by an image of it.

use super::{
    devices::Given,
    document::Node,
    images::{Container, Launches},
    read::{Engines, Invocation, assignment, only_a_shell},
    script::{bytes, given},
    shell::{self, Values, Word},
};

/// Every container of a compose file or manifest.
pub(super) fn launches(
    root: &Node,
    engines: &Engines,
    into: &mut Launches,
) -> Result<(), shell::Unclosed> {
    let host_ipc = |map: &Node| {
        map.get("ipc").and_then(Node::text) == Some("host")
            || map.get("hostIPC").and_then(Node::text) == Some("true")
    };
    let pod_ipc = root
        .maps()
        .into_iter()
        .any(|m| m.get("hostIPC").and_then(Node::text) == Some("true"));
    if root.get("services").is_some() && root.get("include").is_some() {
        into.found.push(Invocation {
            place: "'include' of the file".to_string(),
            no_launch: true,
            unread: vec![elsewhere("include")],
            ..Invocation::default()
        });
    }
    for map in root.maps() {
        let image = map.get("image").and_then(Node::text);
        let has = ["environment", "env", "command", "args", "entrypoint"]
            .iter()
            .any(|key| map.get(key).is_some());
        let service = service(root, map);
        let extends = service.is_some() && map.get("extends").is_some();
        // An image of an engine starts it without any further word; a model server chooses its own.
        let by_itself = image.is_some_and(|image| engines.entry_of(image).is_some())
            || map.get("modelFormat").is_some();
        if !has && !extends && !by_itself {
            continue;
        }
        let mut invocation = Invocation::default();
        for key in ["environment", "env"] {
            if let Some(node) = map.get(key) {
                variables(node, &mut invocation);
            }
        }
        let (entry, args) = entry_and_args(root, map, service.is_some())?;
        let shared =
            host_ipc(map) || pod_ipc || map.get("shm_size").is_some() || mounts_shared_memory(map);
        let name = map
            .get("container_name")
            .or_else(|| map.get("name"))
            .and_then(Node::text)
            .map_or(service, |n| Some(n.to_string()))
            .or_else(|| {
                let named = root.get("metadata")?.get("name")?.text()?;
                Some(format!("{} {named}", root.get("kind")?.text()?))
            })
            .unwrap_or_else(|| "of the file".to_string());
        if map.get("env_file").is_some() || map.get("envFrom").is_some() {
            invocation.variables_open = true;
            invocation
                .unread
                .push("variables of other files: check them with --check-file".to_string());
        }
        if extends {
            invocation.variables_open = true;
            invocation.flags_open = true;
            invocation.unread.push(elsewhere("extends"));
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
        let container = Container {
            image,
            entry,
            args,
            partial: extends || map.get("modelFormat").is_some(),
        };
        container.launches(engines, invocation, into)?;
    }
    Ok(())
}

/// Why a part of a compose file is not judged.
fn elsewhere(key: &str) -> String {
    format!(
        "what '{key}' takes in from elsewhere is not read: give what 'docker compose config' writes"
    )
}

/// What takes the place of the image's entry point, and what is handed to it: Kubernetes' `command` and `args` are a compose
/// file's `entrypoint` and `command`.
fn entry_and_args(
    root: &Node,
    map: &Node,
    service: bool,
) -> Result<(Option<Vec<Word>>, Vec<Word>), shell::Unclosed> {
    let compose = service
        || ["entrypoint", "environment"]
            .iter()
            .any(|key| map.get(key).is_some())
        || !(["args", "env"].iter().any(|key| map.get(key).is_some())
            || ["apiVersion", "kind", "containers"]
                .iter()
                .any(|key| root.get(key).is_some()));
    let (entry, args) = match compose {
        true => ("entrypoint", "command"),
        false => ("command", "args"),
    };
    let entry = map.get(entry).map(as_words).transpose()?;
    // An empty list takes the entry point away for compose, and is nothing to Kubernetes.
    let entry = entry.filter(|words| compose || !words.is_empty());
    let mut words = map.get(args).map(as_words).transpose()?.unwrap_or_default();
    if compose && let Some(more) = map.get("args") {
        words.extend(as_words(more)?);
    }
    Ok((entry, words))
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
