//! Files that a command writes for people and programs: refused early when they cannot become one or would replace what is not ours,
//! and never seen half written, because they are written beside their name and renamed. Root may name anything, and a slip of the
//! hand (`--out /etc/passwd`) must not cost a system file: only nothing, an empty file, or one that this program wrote is replaced.

use super::{console, exit::Stop};
use crate::{
    bundle::{archive, manifest::MANIFEST},
    collect::import,
    render::verdict_file,
};
use std::{
    fs::{File, OpenOptions},
    io::{self, BufWriter, Read, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

/// Bytes of a file that are looked at: more than a bundle's list, a page's head or a verdict take.
const HEAD: u64 = 4 << 20;

/// Refuses, in the words of `option`, a path that cannot become a file, and one that holds what is not ours.
pub(super) fn check(option: &str, path: &Path) -> Result<(), Stop> {
    place(option, path)?;
    holds(option, path, "file that peerproof wrote", is_ours)
}

/// Says that a file which is there will be replaced. For when nothing can refuse the run any more: before that it may not be true.
pub(super) fn tell_replaced(path: &Path) {
    if path.exists() {
        console::note(&format!("{} exists and will be replaced", path.display()));
    }
}

/// Refuses a file whose bytes are not `what`. Nothing there, or an empty file that was made for it, loses nothing.
pub(super) fn holds(
    option: &str,
    path: &Path,
    what: &str,
    is: impl Fn(&[u8]) -> bool,
) -> Result<(), Stop> {
    let shown = path.display();
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => {
            return Err(Stop::usage(format!(
                "{option}: {shown} is there and cannot be read to see whether it may be replaced: {error}; name another file, or remove it"
            )));
        }
    };
    let mut bytes = Vec::new();
    let read = file.take(HEAD).read_to_end(&mut bytes);
    if read.is_ok() && (bytes.is_empty() || is(&bytes)) {
        return Ok(());
    }
    Err(Stop::usage(format!(
        "{option}: {shown} is no {what}, and would be replaced; name another file, or remove it first"
    )))
}

/// Whether bytes are the beginning of a file of ours, of whatever version and form.
fn is_ours(bytes: &[u8]) -> bool {
    if bytes.starts_with(&archive::GZIP) {
        return is_bundle(bytes);
    }
    let head = String::from_utf8_lossy(bytes.get(..bytes.len().min(64 << 10)).unwrap_or(bytes));
    let head = head.trim_start();
    let first = head.lines().take(8).collect::<Vec<_>>().join("\n");
    // Reports, journals and verdicts begin with their version and that of the program.
    let document = head.starts_with('{')
        && ["\"schema_version\"", "\"verdict_version\""]
            .iter()
            .any(|key| first.contains(key))
        && first.contains("\"tool_version\"");
    let page = head.starts_with("<!DOCTYPE html>")
        && head.split_once("<title>").is_some_and(|(_, t)| {
            t.split('<')
                .next()
                .is_some_and(|t| t.contains(": peerproof on "))
        });
    let markdown = first
        .lines()
        .any(|line| line.starts_with("## ") && line.contains(": peerproof on "));
    let junit = head.starts_with("<?xml")
        && first.lines().any(|line| {
            let name = line.strip_prefix("<testsuites name=\"");
            name.and_then(|n| n.split('"').next())
                .is_some_and(|n| n.ends_with("peerproof"))
        });
    document
        || page
        || markdown
        || junit
        || head.starts_with("# HELP peerproof_")
        || is_page_of_text(bytes)
        || is_peer_cache(bytes)
        || verdict_file::is_one(bytes)
}

/// What a run prints, as `render --out FILE.txt` keeps it: near its end the verdict, and below it what to do next or what the exit code
/// means.
fn is_page_of_text(bytes: &[u8]) -> bool {
    const WORDS: [&str; 4] = ["PASS", "WARN", "FAIL", "INCONCLUSIVE"];
    let graded = |text: &str| {
        let word = WORDS.iter().find_map(|word| text.strip_prefix(word));
        word.is_some_and(|rest| rest.starts_with([' ', ':']))
    };
    let text = String::from_utf8_lossy(bytes);
    let lines: Vec<&str> = text.lines().filter(|line| !line.is_empty()).collect();
    let last = lines
        .get(lines.len().saturating_sub(16)..)
        .unwrap_or_default();
    let told = last.iter().any(|line| {
        let code = line
            .strip_prefix("exit code ")
            .and_then(|l| l.split_once("  "));
        code.is_some_and(|(code, word)| code.len() == 1 && graded(word))
    });
    let mut after = last.iter().skip_while(|line| !graded(line)).skip(1);
    told || after.any(|line| line.starts_with("next ")) || import::is_own_text(bytes)
}

/// The engines' file of peer verdicts, which `recommend --write-p2p-cache` is asked to replace: {"0->1": true}.
fn is_peer_cache(bytes: &[u8]) -> bool {
    let pairs: Result<std::collections::BTreeMap<String, bool>, _> = serde_json::from_slice(bytes);
    let is_pair = |key: &String| {
        key.split_once("->").is_some_and(|(s, d)| {
            [s, d]
                .iter()
                .all(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
        })
    };
    pairs.is_ok_and(|pairs| !pairs.is_empty() && pairs.keys().all(is_pair))
}

fn is_bundle(bytes: &[u8]) -> bool {
    archive::begins_with(bytes, MANIFEST)
}

/// Refuses, in the words of `option`, a path that cannot become a file.
pub(super) fn place(option: &str, path: &Path) -> Result<(), Stop> {
    let shown = path.display();
    if path.as_os_str() == "-" {
        return Err(Stop::usage(format!("{option}: '-' is no file")));
    }
    if path.is_dir() {
        return Err(Stop::usage(format!(
            "{option}: {shown} is a folder; name a file in it"
        )));
    }
    // A rename would take the place of a device, a pipe or a socket, and as root nothing would stop it.
    if path.metadata().is_ok_and(|seen| !seen.is_file()) {
        return Err(Stop::usage(format!(
            "{option}: {shown} is no plain file (a device, pipe or socket), and would be replaced by one"
        )));
    }
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty());
    match parent.filter(|p| !p.is_dir()) {
        Some(parent) => Err(Stop::usage(format!(
            "{option}: there is no folder {}",
            parent.display()
        ))),
        None => try_draft(option, path),
    }
}

/// Opens the draft of a file as [`replace`] will, and takes it away again: a folder that lets nothing be written is told before minutes
/// are spent on what is to stand there.
fn try_draft(option: &str, path: &Path) -> Result<(), Stop> {
    let path = behind(path);
    let draft = open_draft(&path, 0o600);
    draft
        .map(|(_, draft)| drop(std::fs::remove_file(draft)))
        .map_err(|error| {
            Stop::usage(format!(
                "{option}: {} cannot be written: {error}; nothing was done, name another file",
                path.display()
            ))
        })
}

/// The file that `path` names: what a link leads to, also where nothing stands there yet.
fn behind(path: &Path) -> PathBuf {
    if let Ok(file) = path.canonicalize() {
        return file;
    }
    match path.read_link() {
        Ok(target) => path.parent().unwrap_or(Path::new("")).join(target),
        Err(_) => path.to_path_buf(),
    }
}

/// Refuses to write onto the file that is read: what it says would be lost.
pub(super) fn not_onto(option: &str, path: &Path, input: &Path) -> Result<(), Stop> {
    match (path.canonicalize(), input.canonicalize()) {
        (Ok(out), Ok(read)) if out == read => Err(Stop::usage(format!(
            "{option}: {} is the file that is read, and would be replaced; name another",
            path.display()
        ))),
        _ => Ok(()),
    }
}

/// Writes a file beside its name and renames it into place: a reader sees all of it or what was there before. A link stays a
/// link: the file behind it is what is replaced.
///
/// # Errors
/// Those of the file system and of `write`; nothing is left behind then.
pub(super) fn replace(
    path: &Path,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    put(path, 0o666, write)
}

/// The same, readable by its owner alone.
///
/// # Errors
/// As [`replace`].
pub(super) fn replace_private(
    path: &Path,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    put(path, 0o600, write)
}

fn put(
    path: &Path,
    mode: u32,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    let path = &behind(path);
    if path.metadata().is_ok_and(|seen| !seen.is_file()) {
        return Err(io::Error::other("it is no plain file"));
    }
    let (file, draft) = open_draft(path, mode)?;
    let mut out = BufWriter::new(file);
    let written = write(&mut out)
        .and_then(|()| out.flush())
        .and_then(|()| out.get_ref().sync_all())
        .and_then(|()| std::fs::rename(&draft, path));
    if written.is_err() {
        // Nothing to do about a draft that cannot be removed either: it has another name.
        let _ = std::fs::remove_file(&draft);
    }
    written
}

/// The file beside `path` that is renamed into its place, new and empty.
fn open_draft(path: &Path, mode: u32) -> io::Result<(File, PathBuf)> {
    let mut draft = path.as_os_str().to_owned();
    draft.push(".part");
    let draft = PathBuf::from(draft);
    // What stands there is a leftover, or somebody's trap in a folder of all: neither is written through. A file that is none of ours
    // is somebody's.
    let link = draft.symlink_metadata().is_ok_and(|seen| seen.is_symlink());
    if !link && let Err(stop) = holds("its draft", &draft, "leftover of peerproof", is_ours) {
        return Err(io::Error::other(stop.message));
    }
    let _ = std::fs::remove_file(&draft);
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(&draft)?;
    Ok((file, draft))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::{fs::symlink, net::UnixListener};

    #[test]
    fn a_link_stays_a_link_though_nothing_stands_behind_it() {
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("link.json");
        symlink("later.json", &link).unwrap();
        replace(&link, |out| out.write_all(b"{}")).unwrap();
        assert!(link.symlink_metadata().unwrap().is_symlink());
        let file = folder.path().join("later.json");
        assert_eq!(std::fs::read_to_string(file).unwrap(), "{}");
    }

    #[test]
    fn what_is_read_is_not_written_onto_by_any_of_its_names() {
        let folder = tempfile::tempdir().unwrap();
        let read = folder.path().join("report.json");
        std::fs::write(&read, "{}").unwrap();
        let link = folder.path().join("link.json");
        std::os::unix::fs::symlink(&read, &link).unwrap();
        let around = folder.path().join(".").join("report.json");
        for out in [&read, &link, &around] {
            assert!(not_onto("--out", out, &read).is_err(), "{}", out.display());
        }
        assert!(not_onto("--out", &folder.path().join("other.json"), &read).is_ok());
    }

    #[test]
    fn what_is_no_plain_file_is_never_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("socket");
        let _listener = UnixListener::bind(&place).unwrap();
        assert!(check("--out", &place).is_err());
        assert!(replace(&place, |out| out.write_all(b"x")).is_err());
        assert!(!place.metadata().unwrap().is_file());
        assert_eq!(folder.path().read_dir().unwrap().count(), 1);
    }

    /// Root may write everywhere but there, and a name may be too long for a draft.
    #[test]
    fn a_place_where_nothing_can_be_written_is_refused_before_the_run() {
        let folder = tempfile::tempdir().unwrap();
        let long = folder.path().join("x".repeat(253));
        for path in [Path::new("/proc/peerproof.json"), &long] {
            let stop = check("--out", path).unwrap_err();
            assert_eq!(stop.code, super::super::exit::USAGE);
            assert!(
                stop.message.contains("cannot be written"),
                "{}",
                stop.message
            );
        }
        check("--out", &folder.path().join("fine.json")).unwrap();
        assert_eq!(folder.path().read_dir().unwrap().count(), 0);
    }

    #[test]
    fn what_is_not_ours_is_never_replaced_and_stays_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let foreign: [&[u8]; 12] = [
            b"root:x:0:0:root:/root:/bin/bash\n",
            b"{}",
            b"[]",
            b"{\"schema_version\": 2, \"packages\": []}",
            b"{\"0->1\": \"true\"}",
            b"{\"mode\": true}",
            b"<!DOCTYPE html>\n<html><head><title>Notes: peerproof</title></head>",
            b"## Notes\n\npeerproof on the list of things to try\n",
            b"<?xml version=\"1.0\"?>\n<testsuites name=\"pytest\">",
            b"# HELP node_load1 1m load average.\n",
            b"exit code 0\n",
            &[0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3, 1, 2, 3],
        ];
        for bytes in foreign {
            std::fs::write(&path, bytes).unwrap();
            let stop = check("--out", &path).unwrap_err();
            assert!(stop.message.contains("remove it first"), "{}", stop.message);
            assert_eq!(std::fs::read(&path).unwrap(), bytes);
        }
    }

    #[test]
    fn ours_of_every_form_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let ours = [
            "",
            "{\n  \"schema_version\": 9,\n  \"tool_version\": \"9.0\",\n",
            "{\"schema_version\":1,\"tool_version\":\"0.1.0\",\"kernels_sha256\":",
            "{\n  \"verdict_version\": 1,\n  \"tool_version\": \"0.1.0\"}",
            "<!DOCTYPE html>\n<html lang=\"en\"><head><title>FAIL: peerproof on host-1</title>",
            "> **SIMULATED**: x\n\n## SIMULATED: PASS: peerproof on host-1\n",
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites name=\"SIMULATED peerproof\" tests=\"1\">",
            "# HELP peerproof_info Versions\n",
            "PASS    all\n\nreport file  q.json\nexit code 0  PASS: all that applies passed\n",
            "8 ranks\n\nPASS    every sum is exact\nlimits  none\nnext    peerproof qualify\n",
            "{\"0->0\": true, \"0->1\": false}",
        ];
        for text in ours {
            std::fs::write(&path, text).unwrap();
            assert!(check("--out", &path).is_ok(), "{text}");
        }
    }

    #[test]
    fn a_planted_draft_is_not_written_through() {
        let folder = tempfile::tempdir().unwrap();
        let (file, victim) = (folder.path().join("file"), folder.path().join("victim"));
        std::fs::write(&victim, "old").unwrap();
        let draft = folder.path().join("file.part");
        symlink(&victim, &draft).unwrap();
        replace(&file, |out| out.write_all(b"new")).unwrap();
        assert_eq!(std::fs::read_to_string(&victim).unwrap(), "old");
        assert!(file.symlink_metadata().unwrap().is_file());
        // Somebody's download is no leftover.
        std::fs::write(&draft, "half of it").unwrap();
        let error = replace(&file, |out| out.write_all(b"newer")).unwrap_err();
        assert!(error.to_string().contains("file.part"), "{error}");
        assert_eq!(std::fs::read_to_string(&draft).unwrap(), "half of it");
    }

    #[test]
    fn a_link_stays_one_and_its_file_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        std::fs::write(&file, "").unwrap();
        symlink(&file, &link).unwrap();
        check("--out", &link).unwrap();
        replace(&link, |out| out.write_all(b"new")).unwrap();
        assert!(link.symlink_metadata().unwrap().is_symlink());
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "new");
    }
}
