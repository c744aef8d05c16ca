//! tar.gz in memory. A bundle comes by mail: every header is distrusted, nothing is unpacked to disk, and what a bundle of
//! ours never has (links, folders, long names) ends the reading.

use super::manifest::{BUNDLE_VERSION, HOST, JOURNAL, Listed, MANIFEST, Manifest, REPORT};
use flate2::{Compression, read::GzDecoder, write::GzEncoder};
use std::{
    collections::BTreeSet,
    io::{self, Read, Write},
};

/// Most members.
pub const MOST_MEMBERS: usize = 4096;
/// Largest member, bytes.
pub const LARGEST_MEMBER: u64 = 64 << 20;
/// All members together with their headers, bytes. A gzip bomb ends here.
pub const LARGEST_WHOLE: u64 = 256 << 20;

/// The first bytes of gzip.
pub const GZIP: [u8; 2] = [0x1f, 0x8b];

/// Why an archive is no bundle.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// Not gzip, not tar, or cut off.
    #[error("not a bundle of peerproof: {0}; other compressed files must be unpacked first")]
    Damaged(io::Error),
    /// It has no list.
    #[error(
        "not a bundle of peerproof: its first member is not {MANIFEST}; other compressed files must be unpacked first"
    )]
    NoManifest,
    /// The list is of another shape.
    #[error("{MANIFEST} of the bundle: {0}")]
    Manifest(serde_json::Error),
    /// Written by a newer peerproof.
    #[error(
        "bundle version {found} is newer than this peerproof reads (up to {BUNDLE_VERSION}); use a newer one"
    )]
    Newer {
        /// Version in the list.
        found: u32,
    },
    /// Something that a bundle never has.
    #[error("refused: {0}; no bundle of peerproof has such a thing")]
    Hostile(String),
    /// A member is not what the list says.
    #[error("{0} of the bundle is not what its list says: damaged or edited")]
    Changed(String),
    /// Neither report nor journal nor host.
    #[error("the bundle has neither a report nor a reading of the host")]
    Nothing,
}

/// A member of an archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Name, relative, with `/`.
    pub name: String,
    /// Content.
    pub bytes: Vec<u8>,
}

/// Writes members in order. Owner, group and names of the packer are not in it; `written_at` is in seconds since 1970.
///
/// # Errors
/// Those of the writer; names too long for the plain tar format.
pub fn write(members: &[Member], written_at: u64, out: impl Write) -> io::Result<()> {
    let mut archive = tar::Builder::new(GzEncoder::new(out, Compression::default()));
    for member in members {
        let mut header = tar::Header::new_ustar();
        header.set_path(&member.name)?;
        header.set_entry_type(tar::EntryType::Regular);
        header.set_size(member.bytes.len() as u64);
        header.set_mode(0o600);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(written_at);
        header.set_cksum();
        archive.append(&header, member.bytes.as_slice())?;
    }
    archive.into_inner()?.finish()?.flush()
}

/// A stream that ends with an error, not silently, after so many bytes.
struct Bounded<R> {
    inner: R,
    left: u64,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.left = self.left.checked_sub(count as u64).ok_or_else(|| {
            io::Error::other(format!(
                "it unpacks to more than {} MiB",
                LARGEST_WHOLE >> 20
            ))
        })?;
        Ok(count)
    }
}

/// Whether a name stays inside the archive.
fn harmless(name: &str) -> bool {
    !name.is_empty()
        && !name.contains(['\\', '\0'])
        && name
            .split('/')
            .all(|part| !part.is_empty() && part != "." && part != "..")
}

/// Whether the first member has that name; `bytes` may be the beginning of an archive alone.
pub fn begins_with(bytes: &[u8], name: &str) -> bool {
    let mut archive = tar::Archive::new(GzDecoder::new(bytes));
    let first = archive
        .entries()
        .ok()
        .and_then(|entries| entries.raw(true).next());
    first.is_some_and(|entry| entry.is_ok_and(|e| *e.path_bytes() == *name.as_bytes()))
}

/// Reads all members that `wanted` names; the others are looked at and dropped.
///
/// # Errors
/// One that names the first thing that a bundle never has.
pub fn read(bytes: &[u8], wanted: impl Fn(&str) -> bool) -> Result<Vec<Member>, ArchiveError> {
    let stream = Bounded {
        inner: GzDecoder::new(bytes),
        left: LARGEST_WHOLE,
    };
    let mut archive = tar::Archive::new(stream);
    // Raw: extensions (long names, sparse files) come as entries of their own, and are refused like any other kind.
    let entries = archive.entries().map_err(ArchiveError::Damaged)?.raw(true);
    let mut members = Vec::new();
    let mut names = BTreeSet::new();
    for entry in entries {
        let entry = entry.map_err(ArchiveError::Damaged)?;
        let name = String::from_utf8(entry.path_bytes().into_owned())
            .map_err(|_| ArchiveError::Hostile("a name that is not UTF-8".to_string()))?;
        let shown: String = name.chars().take(80).collect();
        if entry.header().entry_type() != tar::EntryType::Regular {
            return Err(ArchiveError::Hostile(format!(
                "'{shown}' is no plain file (a link, a folder, a device or an extension)"
            )));
        }
        if !harmless(&name) {
            return Err(ArchiveError::Hostile(format!("the name '{shown}'")));
        }
        if names.len() == MOST_MEMBERS {
            return Err(ArchiveError::Hostile(format!(
                "more than {MOST_MEMBERS} members"
            )));
        }
        let size = entry.size();
        if size > LARGEST_MEMBER {
            return Err(ArchiveError::Hostile(format!(
                "'{shown}' of {} MiB (at most {} are read)",
                size >> 20,
                LARGEST_MEMBER >> 20
            )));
        }
        if !names.insert(name.clone()) {
            return Err(ArchiveError::Hostile(format!("'{shown}' twice")));
        }
        if !wanted(&name) {
            continue;
        }
        let mut bytes = Vec::new();
        entry
            .take(LARGEST_MEMBER)
            .read_to_end(&mut bytes)
            .map_err(ArchiveError::Damaged)?;
        if bytes.len() as u64 != size {
            return Err(ArchiveError::Damaged(io::Error::other(format!(
                "'{shown}' is cut off"
            ))));
        }
        members.push(Member { name, bytes });
    }
    Ok(members)
}

/// The member of a bundle that tells most: the report, else the journal, else the host; with the list.
///
/// # Errors
/// Those of [`read`]; a list that is missing, newer, or at odds with the member.
pub fn open(bytes: &[u8]) -> Result<(Manifest, Member), ArchiveError> {
    let kept = [MANIFEST, REPORT, JOURNAL, HOST];
    let mut members = read(bytes, |name| kept.contains(&name))?.into_iter();
    let first = members
        .next()
        .filter(|member| member.name == MANIFEST)
        .ok_or(ArchiveError::NoManifest)?;
    #[derive(serde::Deserialize)]
    struct VersionOnly {
        bundle_version: u32,
    }
    let version: VersionOnly =
        serde_json::from_slice(&first.bytes).map_err(ArchiveError::Manifest)?;
    if version.bundle_version > BUNDLE_VERSION {
        return Err(ArchiveError::Newer {
            found: version.bundle_version,
        });
    }
    let manifest: Manifest =
        serde_json::from_slice(&first.bytes).map_err(ArchiveError::Manifest)?;
    let best = members
        .min_by_key(|member| kept.iter().position(|name| *name == member.name))
        .ok_or(ArchiveError::Nothing)?;
    if !manifest
        .members
        .contains(&Listed::of(&best.name, &best.bytes))
    {
        return Err(ArchiveError::Changed(best.name));
    }
    Ok((manifest, best))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(name: &str, text: &str) -> Member {
        Member {
            name: name.to_string(),
            bytes: text.as_bytes().to_vec(),
        }
    }

    fn packed(members: &[Member]) -> Vec<u8> {
        let mut out = Vec::new();
        write(members, 1, &mut out).unwrap();
        out
    }

    /// An archive whose headers are made by hand.
    fn forged(entries: &[(&[u8], tar::EntryType, u64, &[u8])]) -> Vec<u8> {
        let mut out = GzEncoder::new(Vec::new(), Compression::best());
        for (name, kind, size, bytes) in entries {
            let mut header = tar::Header::new_ustar();
            header.as_mut_bytes()[..name.len()].copy_from_slice(name);
            header.set_entry_type(*kind);
            header.set_size(*size);
            header.set_mode(0o644);
            header.set_cksum();
            out.write_all(header.as_bytes()).unwrap();
            out.write_all(bytes).unwrap();
            out.write_all(&vec![0; bytes.len().next_multiple_of(512) - bytes.len()])
                .unwrap();
        }
        out.write_all(&[0; 1024]).unwrap();
        out.finish().unwrap()
    }

    fn refusal(archive: &[u8]) -> String {
        read(archive, |_| true).unwrap_err().to_string()
    }

    #[test]
    fn what_is_written_is_read() {
        let members = [
            member("manifest.json", "{}"),
            member("raw/pci/0000:17:00.0.txt", "x"),
        ];
        let archive = packed(&members);
        assert_eq!(read(&archive, |_| true).unwrap(), members);
        assert_eq!(
            read(&archive, |name| name == MANIFEST).unwrap(),
            members[..1]
        );
    }

    #[test]
    fn hostile_archives_are_refused_by_name() {
        use tar::EntryType as Kind;
        let plain = Kind::Regular;
        for (name, kind, word) in [
            (&b"../../etc/passwd"[..], plain, "'../../etc/passwd'"),
            (b"/etc/passwd", plain, "'/etc/passwd'"),
            (b"a/./b", plain, "'a/./b'"),
            (b"a\\..\\b", plain, "'a\\..\\b'"),
            (b"\xff\xfe", plain, "not UTF-8"),
            (b"report.json", Kind::Symlink, "no plain file"),
            (b"report.json", Kind::Link, "no plain file"),
            (b"raw", Kind::Directory, "no plain file"),
            (b"dev", Kind::Char, "no plain file"),
            (b"././@LongLink", Kind::GNULongName, "no plain file"),
            (b"pax", Kind::XHeader, "no plain file"),
            (b"sparse", Kind::GNUSparse, "no plain file"),
        ] {
            let error = refusal(&forged(&[(name, kind, 0, b"")]));
            assert!(
                error.contains(word) && error.starts_with("refused"),
                "{error}"
            );
        }
        let twice: [(&[u8], _, _, &[u8]); 2] = [(b"a", plain, 1, b"x"), (b"a", plain, 1, b"y")];
        assert!(refusal(&forged(&twice)).contains("'a' twice"));
        let huge: [(&[u8], _, _, &[u8]); 1] = [(b"big", plain, 1 << 40, b"x")];
        assert!(refusal(&forged(&huge)).contains("'big' of 1048576 MiB"));
        // Sizes past what eleven octal digits hold are written in binary; the largest would overflow a sum of sizes.
        for size in [u64::MAX, u64::MAX - 511, 1 << 63] {
            let absurd: [(&[u8], _, _, &[u8]); 2] =
                [(b"big", plain, size, b"x"), (b"next", plain, 0, b"")];
            let error = refusal(&forged(&absurd));
            assert!(!error.is_empty() && error.len() < 200, "{error}");
        }
        let names: Vec<String> = (0..=MOST_MEMBERS).map(|n| format!("m{n}")).collect();
        let many: Vec<(&[u8], _, _, &[u8])> = names
            .iter()
            .map(|n| (n.as_bytes(), plain, 0, &b""[..]))
            .collect();
        assert!(refusal(&forged(&many)).contains("more than 4096 members"));
    }

    #[test]
    fn a_bomb_ends_at_the_bound() {
        let zeros = vec![0; LARGEST_MEMBER as usize];
        let member = |n: usize| Member {
            name: format!("m{n}"),
            bytes: zeros.clone(),
        };
        let members: Vec<Member> = (0..5).map(member).collect();
        let bomb = packed(&members);
        assert!(bomb.len() < 1 << 20);
        drop(members);
        let error = read(&bomb, |_| false).unwrap_err().to_string();
        assert!(error.contains("more than 256 MiB"), "{error}");
    }

    #[test]
    fn what_is_no_bundle_is_told_so() {
        let whole = packed(&[
            member("manifest.json", "{}"),
            member("report.json", "{\"a\":1}"),
        ]);
        for damaged in [&whole[..whole.len() / 2], b"\x1f\x8b garbage", b""] {
            assert!(open(damaged).is_err());
        }
        let foreign = packed(&[member("README", "hello")]);
        assert!(matches!(open(&foreign), Err(ArchiveError::NoManifest)));
        assert!(matches!(open(&whole), Err(ArchiveError::Manifest(_))));
        let newer = packed(&[member("manifest.json", "{\"bundle_version\": 99}")]);
        assert!(matches!(
            open(&newer),
            Err(ArchiveError::Newer { found: 99 })
        ));
    }

    #[test]
    fn an_edited_member_is_found_out() {
        let manifest = |text: &str| Manifest {
            bundle_version: BUNDLE_VERSION,
            tool_version: "0".to_string(),
            created_at: "t".to_string(),
            scrubbed: None,
            members: vec![Listed::of(REPORT, text.as_bytes()), Listed::of(HOST, b"h")],
            left_out: Vec::new(),
        };
        let bundle = |listed: &str, text: &str| {
            let list = serde_json::to_string(&manifest(listed)).unwrap();
            packed(&[
                member(MANIFEST, &list),
                member(HOST, "h"),
                member(REPORT, text),
            ])
        };
        assert_eq!(open(&bundle("r", "r")).unwrap().1, member(REPORT, "r"));
        assert!(matches!(
            open(&bundle("r", "s")),
            Err(ArchiveError::Changed(_))
        ));
    }
}
