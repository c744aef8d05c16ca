//! `peerproof bundle`: one archive for support. Reads bundles for the other commands, too.

use super::{Surroundings, again, console, exit::Stop, file, host, map};
use crate::{
    bundle::{
        archive::{self, Member},
        manifest::{BUNDLE_VERSION, HOST, JOURNAL, LeftOut, Listed, MANIFEST, Manifest, REPORT},
        scrub::{Kind, Scrubber},
    },
    collect::{
        live::Depth,
        raw::{self, Identifier, Raw},
    },
    gpu::kernels,
    model::{
        report::{Report, SCHEMA_VERSION},
        snapshot::Snapshot,
    },
    render::{self, json},
};
use std::{
    fs,
    io::Read,
    path::{Path, PathBuf},
};

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Host names, user names, IP and hardware addresses, serial numbers and UUIDs are replaced; PCI addresses, product \
                  names and versions stay. manifest.json in the archive lists what was replaced (how often) and what is missing. \
                  Look through it before you send it: tar -xzf FILE -C FOLDER\n\n\
                  Examples:\n  \
                  peerproof bundle report.json                on the host of the report\n  \
                  peerproof bundle                            a host on which nothing could be tested\n  \
                  peerproof bundle --from report.json         on any machine: the report alone"
)]
pub(super) struct Options {
    /// Report or journal of a run on this host, to go into the bundle.
    #[arg(value_name = "REPORT", conflicts_with = "from")]
    report: Option<PathBuf>,
    /// Take this report or journal alone and read nothing of this machine.
    #[arg(long, value_name = "REPORT")]
    from: Option<PathBuf>,
    /// Where the archive goes; peerproof-bundle-TIME.tar.gz in this folder when not given.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Leave all names, addresses, serial numbers and UUIDs as they are.
    #[arg(long)]
    no_scrub: bool,
}

/// What is to be packed, before anything is replaced.
#[derive(Default)]
struct Contents {
    report: Option<(Report, serde_json::Value)>,
    /// Lines.
    journal: Option<Vec<serde_json::Value>>,
    host: Option<Snapshot>,
    raw: Raw,
    /// Values that name this machine.
    identifiers: Vec<(Identifier, String)>,
}

pub(super) fn run(surroundings: &Surroundings, options: &Options) -> Result<u8, Stop> {
    let mut contents = Contents::default();
    if let Some(path) = options.report.as_ref().or(options.from.as_ref()) {
        read_report(path, &mut contents)?;
    }
    if options.from.is_none() {
        read_host(surroundings, options, &mut contents)?;
    } else {
        let why = "--from: nothing of this machine was read".to_string();
        contents
            .raw
            .left_out
            .push(("files of the host".to_string(), why));
    }
    let now = jiff::Timestamp::now();
    let stamp = now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let mut scrubber = match options.no_scrub {
        true => None,
        false => Some(informed(&contents)?),
    };
    let members = pack(&contents, scrubber.as_mut(), &stamp)?;
    let path = options.out.clone().unwrap_or_else(|| {
        let plain: String = stamp.chars().filter(char::is_ascii_alphanumeric).collect();
        PathBuf::from(format!("peerproof-bundle-{plain}.tar.gz"))
    });
    if let Some(read) = options.report.as_ref().or(options.from.as_ref()) {
        file::not_onto("--out", &path, read)?;
    }
    save(&members.1, now.as_second().max(0) as u64, &path)?;
    tell(&path, &members.0)
}

/// The report or journal, and the journal beside a report.
fn read_report(path: &Path, contents: &mut Contents) -> Result<(), Stop> {
    let name = path.display();
    let (_, bytes) = map::read_plain(&path.to_path_buf())?;
    if bytes.starts_with(&archive::GZIP) {
        return Err(Stop::usage(format!(
            "{name} is compressed; a bundle is made of a report, not of a bundle"
        )));
    }
    let text = std::str::from_utf8(&bytes)
        .map_err(|_| Stop::usage(format!("{name}: not a peerproof report: not UTF-8 text")))?;
    if map::journal_of(&bytes).is_some() {
        contents.journal = Some(lines(text));
        return Ok(());
    }
    let report = json::read(text).map_err(|error| Stop::usage(format!("{name}: {error}")))?;
    let value =
        serde_json::from_str(text).map_err(|error| Stop::usage(format!("{name}: {error}")))?;
    contents.report = Some((report, value));
    let journal = path.with_extension("journal");
    match fs::read(&journal) {
        Ok(bytes) if map::journal_of(&bytes).is_some() => {
            contents.journal = Some(lines(&String::from_utf8_lossy(&bytes)));
        }
        _ => contents.raw.left_out.push((
            "journal".to_string(),
            "there is none beside the report: it goes when the report is whole".to_string(),
        )),
    }
    Ok(())
}

/// Lines of a journal that are whole; the last may be torn.
fn lines(text: &str) -> Vec<serde_json::Value> {
    text.lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect()
}

fn read_host(
    surroundings: &Surroundings,
    options: &Options,
    contents: &mut Contents,
) -> Result<(), Stop> {
    let (session, snapshot) = host::read(surroundings, Depth::Full)?;
    session.leave();
    let of_report = contents
        .report
        .as_ref()
        .map(|(report, _)| report.snapshot.clone());
    let of_journal = || -> Option<Snapshot> {
        let head = contents.journal.as_ref()?.first()?;
        serde_json::from_value(head.get("snapshot")?.clone()).ok()
    };
    if let Some(reported) = of_report.or_else(of_journal)
        && !one_host(&reported, &snapshot)
    {
        return Err(Stop::usage(format!(
            "{} is not a report of this host (no GPU has the same UUID, and the host name differs or is not known): bundle it on its own host, or alone with --from",
            options
                .report
                .as_ref()
                .map_or_else(String::new, |p| p.display().to_string())
        )));
    }
    let mut raw = raw::read(&surroundings.roots, &snapshot, !options.no_scrub);
    raw.left_out.append(&mut contents.raw.left_out);
    contents.raw = raw;
    contents.identifiers = raw::identifiers(&surroundings.roots);
    contents.host = Some(snapshot);
    Ok(())
}

/// The same GPUs by UUID, or the same name.
fn one_host(a: &Snapshot, b: &Snapshot) -> bool {
    let uuids: Vec<&String> = a.gpus.iter().filter_map(|gpu| gpu.uuid.known()).collect();
    let mut others = b.gpus.iter().filter_map(|gpu| gpu.uuid.known());
    let named = a.host.name.known().is_some() && a.host.name.known() == b.host.name.known();
    others.any(|uuid| uuids.contains(&uuid)) || named
}

/// A scrubber that knows all names that the contents give away.
fn informed(contents: &Contents) -> Result<Scrubber, Stop> {
    let mut salt = [0_u8; 16];
    fs::File::open("/dev/urandom")
        .and_then(|mut source| source.read_exact(&mut salt))
        .map_err(|error| {
            Stop::failed(&format!(
                "no random salt: /dev/urandom: {error}; nothing was written"
            ))
        })?;
    let mut scrubber = Scrubber::new(salt);
    let journal = contents.journal.as_ref().and_then(|lines| lines.first());
    let in_journal: Option<Snapshot> =
        journal.and_then(|head| serde_json::from_value(head.get("snapshot")?.clone()).ok());
    let reported = contents.report.as_ref().map(|(report, _)| &report.snapshot);
    for snapshot in [reported, in_journal.as_ref(), contents.host.as_ref()]
        .into_iter()
        .flatten()
    {
        if let Some(name) = snapshot.host.name.known() {
            scrubber.know(Kind::Host, name);
        }
        for gpu in &snapshot.gpus {
            if let Some(uuid) = gpu.uuid.known() {
                let bare = uuid.strip_prefix("GPU-").unwrap_or(uuid);
                scrubber.know(Kind::Uuid, bare);
            }
        }
    }
    for (kind, value) in &contents.identifiers {
        let kind = match kind {
            Identifier::Host => Kind::Host,
            Identifier::Serial => Kind::Serial,
            Identifier::Uuid => Kind::Uuid,
            Identifier::Hardware => Kind::Hardware,
        };
        scrubber.know(kind, value);
    }
    for variable in ["USER", "LOGNAME", "SUDO_USER"] {
        if let Ok(name) = std::env::var(variable) {
            scrubber.know(Kind::User, &name);
        }
    }
    if let Some((_, value)) = &contents.report {
        scrubber.learn_json(value);
    }
    contents
        .journal
        .iter()
        .flatten()
        .for_each(|line| scrubber.learn_json(line));
    contents
        .raw
        .files
        .iter()
        .for_each(|(_, text)| scrubber.learn(text));
    Ok(scrubber)
}

/// Members in order, the list first; and the list by itself.
fn pack(
    contents: &Contents,
    mut scrubber: Option<&mut Scrubber>,
    stamp: &str,
) -> Result<(Manifest, Vec<Member>), Stop> {
    let mut members = Vec::new();
    if let Some((report, value)) = &contents.report {
        let mut value = value.clone();
        if let Some(scrubber) = scrubber.as_deref_mut() {
            scrubber.json(&mut value);
        }
        let mut text = serde_json::to_string_pretty(&value).map_err(unwritable)?;
        text.push('\n');
        unharmed(report, &text)?;
        members.push(member(REPORT, text));
    }
    if let Some(lines) = &contents.journal {
        let mut text = String::new();
        for line in lines {
            let mut line = line.clone();
            if let Some(scrubber) = scrubber.as_deref_mut() {
                scrubber.json(&mut line);
            }
            text += &line.to_string();
            text.push('\n');
        }
        json::read_journal(&text).map_err(|error| {
            Stop::failed(&format!("a name in the journal is also a word of its format: {error}; --no-scrub packs it as it is"))
        })?;
        members.push(member(JOURNAL, text));
    }
    if let Some(snapshot) = &contents.host {
        // A journal without records: every reader of journals reads it.
        let head = json::JournalHead {
            schema_version: SCHEMA_VERSION,
            tool_version: env!("CARGO_PKG_VERSION").to_string(),
            kernels_sha256: kernels::sha256(),
            authenticity: snapshot.authenticity,
            started_at: stamp.to_string(),
            arguments: Vec::new(),
            snapshot: snapshot.clone(),
            tested_gpus: Vec::new(),
        };
        let mut value = serde_json::to_value(&head).map_err(unwritable)?;
        if let Some(scrubber) = scrubber.as_deref_mut() {
            scrubber.json(&mut value);
        }
        members.push(member(HOST, format!("{value}\n")));
    }
    for (name, text) in &contents.raw.files {
        let text = match scrubber.as_deref_mut() {
            Some(scrubber) => scrubber.text(text),
            None => text.clone(),
        };
        let name = match scrubber.as_deref_mut() {
            Some(scrubber) => scrubber.text(name),
            None => name.clone(),
        };
        members.push(member(&format!("raw/{name}.txt"), text));
    }
    let left_out = contents.raw.left_out.iter().map(|(what, why)| {
        let mut clean = |text: &String| match scrubber.as_deref_mut() {
            Some(scrubber) => scrubber.text(text),
            None => text.clone(),
        };
        LeftOut {
            what: clean(what),
            why: clean(why),
        }
    });
    let left_out = left_out.collect();
    let manifest = Manifest {
        bundle_version: BUNDLE_VERSION,
        tool_version: env!("CARGO_PKG_VERSION").to_string(),
        created_at: stamp.to_string(),
        scrubbed: scrubber.map(|scrubber| scrubber.counts()),
        members: members
            .iter()
            .map(|m: &Member| Listed::of(&m.name, &m.bytes))
            .collect(),
        left_out,
    };
    let mut text = serde_json::to_string_pretty(&manifest).map_err(unwritable)?;
    text.push('\n');
    members.insert(0, member(MANIFEST, text));
    Ok((manifest, members))
}

fn member(name: &str, text: String) -> Member {
    Member {
        name: name.to_string(),
        bytes: text.into_bytes(),
    }
}

fn unwritable(error: serde_json::Error) -> Stop {
    Stop::failed(&format!("the bundle could not be written: {error}"))
}

/// A host can have a name that is also a word of the format or the id of a mechanism; replacing it would change what the
/// report says. Then nothing is written.
fn unharmed(report: &Report, text: &str) -> Result<(), Stop> {
    let clash = |what: String| {
        Stop::failed(&format!(
            "a name in the report is also a word of its format ({what}); --no-scrub packs it as it is"
        ))
    };
    let scrubbed = json::read(text).map_err(|error| clash(error.to_string()))?;
    let told = |report: &Report| -> (Vec<_>, Vec<_>) {
        let records = report.records.iter();
        let records = records.map(|r| (r.case.clone(), r.outcome.word(), r.peer_access));
        let reductions = report.reductions.iter();
        let reductions = reductions.map(|r| (r.algorithm.clone(), r.outcome.word()));
        (records.collect(), reductions.collect())
    };
    let pci = |report: &Report| -> Vec<_> {
        report
            .snapshot
            .gpus
            .iter()
            .map(|gpu| gpu.pci.clone())
            .collect()
    };
    if told(report) != told(&scrubbed) || pci(report) != pci(&scrubbed) {
        return Err(clash("a mechanism or a result".to_string()));
    }
    let grade = |report: &Report| {
        let mut judged = report.clone();
        again::judge(&mut judged);
        let causes: Vec<_> = judged
            .findings
            .iter()
            .map(|f| (f.cause.clone(), f.judgement))
            .collect();
        (judged.verdict.grading, causes)
    };
    if grade(report) != grade(&scrubbed) {
        return Err(clash(
            "its causes are judged otherwise without the names".to_string(),
        ));
    }
    Ok(())
}

fn save(members: &[Member], written_at: u64, path: &Path) -> Result<(), Stop> {
    let shown = path.display();
    file::check("--out", path)?;
    file::replace_private(path, |out| archive::write(members, written_at, out))
        .map_err(|error| Stop::usage(format!("failed to write {shown}: {error}")))
}

fn tell(path: &Path, manifest: &Manifest) -> Result<u8, Stop> {
    console::print(|out| {
        let bytes: u64 = manifest.members.iter().map(|m| m.bytes).sum();
        writeln!(
            out,
            "{}: {} beside {MANIFEST}, {} KiB unpacked, readable by you alone",
            render::clean(&path.to_string_lossy()),
            match manifest.members.len() {
                1 => "1 member".to_string(),
                many => format!("{many} members"),
            },
            bytes.div_ceil(1024)
        )?;
        match &manifest.scrubbed {
            None => writeln!(
                out,
                "NOT scrubbed: names, addresses, serial numbers and UUIDs are in it"
            )?,
            Some(counts) if counts.is_empty() => {
                writeln!(out, "replaced: nothing was found to replace")?
            }
            Some(counts) => {
                let words: Vec<String> = counts
                    .iter()
                    .map(|(kind, n)| format!("{kind} {} ({} places)", n.values, n.places))
                    .collect();
                writeln!(out, "replaced: {}", words.join(", "))?;
            }
        }
        writeln!(
            out,
            "left out: {}, listed with reasons in {MANIFEST}",
            manifest.left_out.len()
        )?;
        writeln!(
            out,
            "look through it before you send it: tar -xzf FILE -C FOLDER"
        )
    })
}

/// What tells most of a bundle, with a name for messages.
pub(super) fn unpacked(name: &str, bytes: &[u8]) -> Result<(String, Vec<u8>), Stop> {
    let (_, member) =
        archive::open(bytes).map_err(|error| Stop::usage(format!("{name}: {error}")))?;
    Ok((format!("{name} ({})", member.name), member.bytes))
}
