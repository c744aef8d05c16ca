//! XML within bounds: UTF-8, no internal DTD subset, limited depth, attributes and nodes; every error carries its place.

use super::error::{ImportError, quoted};
use crate::model::pci::PciAddress;
use roxmltree::{Document, Node, ParsingOptions};

/// Deepest nesting accepted. hwloc nests about 30 levels, NCCL about 8.
const MAX_DEPTH: usize = 96;
/// Most attributes of one element. hwloc writes about 20.
const MAX_ATTRIBUTES: usize = 256;
/// Most attributes of one document.
const MAX_ALL_ATTRIBUTES: usize = 4_000_000;
/// Most nodes of one document. The largest host file seen has about 30,000.
const MAX_NODES: u32 = 4_000_000;

/// Most GPUs that a file may list: tables of pairs grow with their square.
pub(super) const MAX_GPUS: usize = 256;
/// Most network adapters.
pub(super) const MAX_NICS: usize = 512;
/// Most PCI functions; virtual functions reach some thousands.
pub(super) const MAX_FUNCTIONS: usize = 65_536;

/// A parsed document and the file it came from, for messages.
pub(super) struct Xml<'a> {
    file: &'a str,
    document: Document<'a>,
}

impl<'a> Xml<'a> {
    /// Parses after a linear look at depth, attributes and entities, so that no input costs more than its length.
    pub(super) fn parse(file: &'a str, text: &'a str) -> Result<Self, ImportError> {
        bounded(file, text)?;
        let options = ParsingOptions {
            allow_dtd: true,
            nodes_limit: MAX_NODES,
            ..ParsingOptions::default()
        };
        match Document::parse_with_options(text, options) {
            Ok(document) => Ok(Xml { file, document }),
            Err(error) => {
                let place = error.pos();
                let (row, col) = match error {
                    // The crate has no place for these; what is missing is missing at the end.
                    roxmltree::Error::UnexpectedEndOfStream
                    | roxmltree::Error::UnclosedRootNode
                    | roxmltree::Error::NoRootNode => place_of(text, text.len()),
                    _ => (place.row, place.col),
                };
                if matches!(error, roxmltree::Error::NodesLimitReached) {
                    return Err(ImportError::whole(
                        file,
                        "more than 4,000,000 XML nodes; no host has as many",
                    ));
                }
                let mut words = error.to_string();
                // The crate appends its own place to most messages; ours stands in front.
                if let Some(cut) = words.rfind(" at ") {
                    words.truncate(cut);
                }
                Err(ImportError::at(
                    file,
                    row,
                    col,
                    format!("not well-formed XML: {words}; was the file cut short or edited?"),
                ))
            }
        }
    }

    /// The root element.
    pub(super) fn root(&self) -> Node<'_, 'a> {
        self.document.root_element()
    }

    /// An error at a node.
    pub(super) fn error(&self, node: Node<'_, '_>, message: impl Into<String>) -> ImportError {
        let place = self.document.text_pos_at(node.range().start);
        ImportError::at(self.file, place.row, place.col, message)
    }

    /// An error at the value of an attribute, or at its element when the attribute is missing.
    pub(super) fn error_in(
        &self,
        node: Node<'_, '_>,
        attribute: &str,
        message: impl Into<String>,
    ) -> ImportError {
        let start = node
            .attributes()
            .find(|a| a.name() == attribute)
            .map_or(node.range().start, |a| a.range_value().start);
        let place = self.document.text_pos_at(start);
        ImportError::at(self.file, place.row, place.col, message)
    }

    /// A PCI address that must be there and must be well formed.
    pub(super) fn address(
        &self,
        node: Node<'_, '_>,
        attribute: &str,
    ) -> Result<PciAddress, ImportError> {
        let text = node.attribute(attribute).ok_or_else(|| {
            let tag = quoted(node.tag_name().name());
            self.error(node, format!("{tag} has no {attribute}"))
        })?;
        strict_address(text).ok_or_else(|| {
            self.error_in(
                node,
                attribute,
                format!(
                    "{attribute} {} is not a PCI address (DOMAIN:BUS:DEVICE.FUNCTION, as 0000:17:00.0); \
                     export the topology again from the host",
                    quoted(text)
                ),
            )
        })
    }
}

/// Files of tools always write all four parts; a shortened address in them is a sign of hand editing.
pub(super) fn strict_address(text: &str) -> Option<PciAddress> {
    let address: PciAddress = text.parse().ok()?;
    (text.matches(':').count() == 2 && text.contains('.')).then_some(address)
}

fn bounded(file: &str, text: &str) -> Result<(), ImportError> {
    let refuse = |at: usize, message: &str| {
        let (line, column) = place_of(text, at);
        Err(ImportError::at(file, line, column, message))
    };
    if let Some(at) = text.find("<!ENTITY") {
        return refuse(
            at,
            "XML entities are not accepted; no topology tool writes them",
        );
    }
    if text.matches("xmlns").nth(16).is_some() {
        return refuse(
            text.find("xmlns").unwrap_or(0),
            "XML namespaces are not accepted; no topology tool writes them",
        );
    }
    let bytes = text.as_bytes();
    let (mut at, mut depth, mut all) = (0, 0_usize, 0_usize);
    while let Some(open) = find(bytes, at, b"<") {
        let rest = &bytes[open..];
        let skip = |end: &[u8]| find(bytes, open, end).map_or(bytes.len(), |e| e + end.len());
        if rest.starts_with(b"<!--") {
            at = skip(b"-->");
        } else if rest.starts_with(b"<![CDATA[") {
            at = skip(b"]]>");
        } else if rest.starts_with(b"<?") {
            at = skip(b"?>");
        } else if rest.starts_with(b"<!") {
            let end = skip(b">");
            if bytes[open..end].contains(&b'[') {
                return refuse(
                    open,
                    "an internal DTD is not accepted; no topology tool writes one",
                );
            }
            at = end;
        } else if rest.starts_with(b"</") {
            depth = depth.saturating_sub(1);
            at = skip(b">");
        } else {
            let (end, attributes, closed) = tag(bytes, open);
            all += attributes;
            if all > MAX_ALL_ATTRIBUTES {
                return refuse(open, "more than 4,000,000 attributes; no host has as many");
            }
            if attributes > MAX_ATTRIBUTES {
                return refuse(open, "an element with more than 256 attributes");
            }
            if !closed {
                depth += 1;
                if depth > MAX_DEPTH {
                    return refuse(open, "nested deeper than 96 levels; no host is");
                }
            }
            at = end;
        }
    }
    Ok(())
}

/// End of the tag that opens at `open`, its number of attributes, and whether it closes itself.
fn tag(bytes: &[u8], open: usize) -> (usize, usize, bool) {
    let (mut quote, mut attributes) = (None, 0);
    for (offset, byte) in bytes[open..].iter().enumerate() {
        match (quote, *byte) {
            (Some(q), b) if q == b => quote = None,
            (Some(_), _) => {}
            (None, b @ (b'"' | b'\'')) => quote = Some(b),
            (None, b'=') => attributes += 1,
            (None, b'>') => {
                let closed = offset > 0 && bytes[open + offset - 1] == b'/';
                return (open + offset + 1, attributes, closed);
            }
            (None, _) => {}
        }
    }
    (bytes.len(), attributes, true)
}

fn find(bytes: &[u8], from: usize, what: &[u8]) -> Option<usize> {
    let rest = bytes.get(from..)?;
    if let [single] = what {
        return rest.iter().position(|b| b == single).map(|p| from + p);
    }
    rest.windows(what.len())
        .position(|w| w == what)
        .map(|p| from + p)
}

/// Line and column, counted from 1, of a byte offset.
pub(super) fn place_of(text: &str, at: usize) -> (u32, u32) {
    let before = &text.as_bytes()[..at.min(text.len())];
    let line = before.iter().filter(|b| **b == b'\n').count() + 1;
    let start = before
        .iter()
        .rposition(|b| *b == b'\n')
        .map_or(0, |p| p + 1);
    let column = String::from_utf8_lossy(&before[start..]).chars().count() + 1;
    (
        u32::try_from(line).unwrap_or(u32::MAX),
        u32::try_from(column).unwrap_or(u32::MAX),
    )
}

/// `vendor`, `device` and `class` as NCCL and sysfs write them: hexadecimal with or without 0x.
pub(super) fn hex16(text: &str) -> Option<u16> {
    let digits = text.trim().trim_start_matches("0x");
    let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_hexdigit());
    plain
        .then(|| u16::from_str_radix(digits, 16).ok())
        .flatten()
}
