//! The papers of a file, one after the other: a paper by itself, or the members of an archive. A damaged archive ends with a fault.

use super::compressed;
use super::folder::FileEntry;
use super::papers::{TEX, XML, extension, is_paper};
use bessemer_tar::{Entry, TarError, TarReader, is_tar};
use bessemer_web::page::PageVerdict;
use std::collections::VecDeque;
use std::io::{self, Cursor, Read};

/// Most LaTeX files of one paper.
const MOST_TEX_FILES: usize = 2000;

/// A paper as it lies in a file.
pub(super) struct Input {
    pub(super) path: String,
    pub(super) content: Content,
}

pub(super) enum Content {
    /// A file: LaTeX, XML, or a compressed one or an archive of these.
    File(Vec<u8>),
    /// LaTeX files with their paths.
    Tex(Vec<(String, Vec<u8>)>),
    /// An unreadable input: reason, detail.
    Fault(&'static str, String),
}

impl Input {
    pub(super) fn fault(path: &str, reason: &'static str, detail: String) -> Input {
        Input { path: path.to_string(), content: Content::Fault(reason, detail) }
    }

    pub(super) fn bytes(&self) -> usize {
        match &self.content {
            Content::File(bytes) => bytes.len(),
            Content::Tex(files) => files.iter().map(|(_, bytes)| bytes.len()).sum(),
            Content::Fault(..) => 0,
        }
    }
}

/// An opened input and its members.
type Opened = Box<dyn Read + Send>;

/// The papers of a file, one after the other.
pub(super) struct Inputs {
    members: Members,
    pending: VecDeque<Input>,
    /// Papers so far.
    pub(super) row: u64,
}

enum Members {
    Archive(Box<Archive>),
    One,
}

/// An archive that is being read.
struct Archive {
    name: String,
    tar: TarReader<Opened>,
    tex: TexFiles,
    /// PDF files: figures, where the archive has LaTeX.
    pdf: Vec<String>,
    ended: bool,
}

/// LaTeX files of a paper, within bounds.
pub(super) struct TexFiles {
    files: Vec<(String, Vec<u8>)>,
    left: usize,
    too_large: bool,
}

impl TexFiles {
    pub(super) fn new(max_bytes: usize) -> TexFiles {
        TexFiles { files: Vec::new(), left: max_bytes, too_large: false }
    }

    pub(super) fn push(&mut self, path: String, bytes: Vec<u8>) {
        match self.left.checked_sub(bytes.len()) {
            Some(left) if self.files.len() < MOST_TEX_FILES => {
                self.left = left;
                self.files.push((path, bytes));
            }
            _ => self.too_large = true,
        }
    }

    pub(super) fn finish(self, path: &str) -> Option<Input> {
        if self.too_large {
            let detail = format!("LaTeX sources of more than {MOST_TEX_FILES} files, or of too many bytes");
            return Some(Input::fault(path, "too-large", detail));
        }
        (!self.files.is_empty()).then(|| Input { path: path.to_string(), content: Content::Tex(self.files) })
    }
}

impl Inputs {
    pub(super) fn open(file: &FileEntry, max_bytes: usize) -> Inputs {
        let name = file.relative.clone();
        Inputs::try_open(file, max_bytes).unwrap_or_else(|cause| {
            let fault = Input::fault(&name, compressed::fault_reason(&cause), cause.to_string());
            Inputs { members: Members::One, pending: VecDeque::from([fault]), row: 0 }
        })
    }

    fn try_open(file: &FileEntry, max_bytes: usize) -> io::Result<Inputs> {
        let name = file.relative.clone();
        let mut reader = compressed::open_archive(file)?;
        let mut head = Vec::new();
        reader.by_ref().take(512).read_to_end(&mut head)?;
        let tarred = is_tar(&head);
        let opened: Opened = Box::new(Cursor::new(head).chain(reader));
        if tarred {
            let (tar, tex) = (TarReader::new(opened, max_bytes as u64), TexFiles::new(max_bytes));
            let archive = Archive { name, tar, tex, pdf: Vec::new(), ended: false };
            return Ok(Inputs {
                members: Members::Archive(Box::new(archive)),
                pending: VecDeque::new(),
                row: 0,
            });
        }
        let mut bytes = Vec::new();
        opened.take(max_bytes as u64 + 1).read_to_end(&mut bytes)?;
        let input = if bytes.len() > max_bytes {
            Input::fault(&name, "too-large", format!("more than {max_bytes} bytes"))
        } else {
            Input { path: name, content: Content::File(bytes) }
        };
        Ok(Inputs { members: Members::One, pending: VecDeque::from([input]), row: 0 })
    }

    pub(super) fn is_archive(&self) -> bool {
        matches!(self.members, Members::Archive(_))
    }

    pub(super) fn next(&mut self) -> Option<Input> {
        let input = match (self.pending.pop_front(), &mut self.members) {
            (Some(input), _) => Some(input),
            (None, Members::Archive(archive)) => archive.next(&mut self.pending),
            (None, Members::One) => None,
        };
        self.row += u64::from(input.is_some());
        input
    }
}

impl Archive {
    /// The next paper; those of the archive's end go to `pending`.
    fn next(&mut self, pending: &mut VecDeque<Input>) -> Option<Input> {
        while !self.ended {
            match self.tar.next_entry() {
                Ok(Some(Entry::File { path, bytes })) => match extension(&path).as_str() {
                    found if TEX.contains(&found) => self.tex.push(path, bytes),
                    "pdf" => self.pdf.push(path),
                    found if XML.contains(&found) || matches!(found, "gz" | "tgz") => {
                        return Some(Input { path, content: Content::File(bytes) });
                    }
                    _ => {}
                },
                Ok(Some(Entry::Refused { path, why })) => {
                    if is_paper(&path) {
                        return Some(Input::fault(
                            &path,
                            "unreadable",
                            format!("{}: {}", why.name(), why.explanation()),
                        ));
                    }
                }
                Ok(None) => {
                    self.ended = true;
                    let tex = std::mem::replace(&mut self.tex, TexFiles::new(0)).finish(&self.name);
                    if tex.is_none() {
                        pending.extend(self.pdf.drain(..).map(|path| pdf(&path)));
                    }
                    return tex.or_else(|| pending.pop_front());
                }
                Err(TarError { offset, what }) => {
                    self.ended = true;
                    let detail =
                        format!("byte {offset} of the archive: {what}; its papers before that are kept");
                    return Some(Input::fault(&self.name, "truncated-input", detail));
                }
            }
        }
        None
    }
}

/// Row that stands for a PDF file.
pub(super) fn pdf(path: &str) -> Input {
    Input::fault(path, PageVerdict::Pdf.name(), "PDF is not read, convert it to text or HTML first".into())
}
