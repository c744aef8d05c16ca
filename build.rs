//! Embeds data files into the library, each kind as a list of (path below its folder, text): `profiles/**/*.toml` and
//! `docs/causes/*.md`. Does nothing else.

use std::{
    env, fs, io,
    path::{Path, PathBuf},
};

fn main() -> io::Result<()> {
    embed("profiles", "toml", "profiles.rs")?;
    embed("docs/causes", "md", "causes.rs")
}

/// Writes the list of the files below `folder` that end in `extension` to `list` in the build folder.
fn embed(folder: &str, extension: &str, list: &str) -> io::Result<()> {
    let variable = |name: &str| env::var_os(name).ok_or_else(|| io::Error::other(name.to_string()));
    let root = PathBuf::from(variable("CARGO_MANIFEST_DIR")?).join(folder);
    let mut files = Vec::new();
    walk(&root, extension, &mut files)?;
    files.sort();
    let mut text = String::from("&[\n");
    for file in &files {
        let name = file
            .strip_prefix(&root)
            .map_err(io::Error::other)?
            .to_string_lossy()
            .replace('\\', "/");
        text.push_str(&format!("    ({name:?}, include_str!({file:?})),\n"));
    }
    text.push_str("]\n");
    fs::write(PathBuf::from(variable("OUT_DIR")?).join(list), text)
}

/// Collects files; each folder is watched, so that a new file is seen.
fn walk(folder: &Path, extension: &str, files: &mut Vec<PathBuf>) -> io::Result<()> {
    println!("cargo::rerun-if-changed={}", folder.display());
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            walk(&path, extension, files)?;
        } else if path.extension().is_some_and(|e| e == extension) {
            println!("cargo::rerun-if-changed={}", path.display());
            files.push(path);
        }
    }
    Ok(())
}
