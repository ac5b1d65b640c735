//! The few fields of SentencePiece's `ModelProto` (sentencepiece_model.proto) that cutting text needs.

/// A fault of the file, with its offset in bytes.
pub(super) struct Fault {
    pub(super) at: usize,
    pub(super) what: String,
}

type Read<T> = Result<T, Fault>;

/// Kinds of pieces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Normal,
    UserDefined,
    Unused,
    /// Unknown, control and byte pieces, which no text holds.
    Other,
}

/// How a model cuts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ModelType {
    Unigram,
    Bpe,
    Word,
    Char,
}

pub(super) struct Piece {
    pub(super) text: String,
    pub(super) score: f32,
    pub(super) kind: Kind,
}

/// How text is normalised.
pub(super) struct NormalizerSpec {
    pub(super) charsmap: Vec<u8>,
    pub(super) add_prefix: bool,
    pub(super) remove_spaces: bool,
    pub(super) escape: bool,
    /// The space goes behind the words (trainer_spec.treat_whitespace_as_suffix).
    pub(super) suffix: bool,
}

pub(super) struct Model {
    pub(super) pieces: Vec<Piece>,
    pub(super) kind: ModelType,
    pub(super) byte_fallback: bool,
    pub(super) normalizer: NormalizerSpec,
}

/// A message from `at` to `end` of the file.
struct Message<'b> {
    bytes: &'b [u8],
    at: usize,
    end: usize,
}

/// The value of a field.
enum Value {
    Number(u64),
    Float(f32),
    /// Begin and end of the bytes.
    Bytes(usize, usize),
}

impl Message<'_> {
    fn fault<T>(&self, what: impl Into<String>) -> Read<T> {
        Err(Fault { at: self.at, what: what.into() })
    }

    fn varint(&mut self) -> Read<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            if self.at >= self.end {
                return self.fault("a number is cut off: the file is truncated or no SentencePiece model");
            }
            let byte = self.bytes[self.at];
            self.at += 1;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        self.fault("a number of more than ten bytes: no SentencePiece model")
    }

    fn skip(&mut self, count: u64, what: &str) -> Read<usize> {
        let start = self.at;
        if count > (self.end - self.at) as u64 {
            return self.fault(format!("{what} takes {count} bytes, {} are left", self.end - self.at));
        }
        self.at += count as usize;
        Ok(start)
    }

    /// The next field, or nothing at the end.
    fn next(&mut self) -> Read<Option<(u64, Value)>> {
        if self.at >= self.end {
            return Ok(None);
        }
        let key = self.varint()?;
        let value = match key & 7 {
            0 => Value::Number(self.varint()?),
            1 => {
                self.skip(8, "a field")?;
                Value::Number(0)
            }
            2 => {
                let length = self.varint()?;
                let start = self.skip(length, "a field")?;
                Value::Bytes(start, self.at)
            }
            5 => {
                let start = self.skip(4, "a field")?;
                let bytes = &self.bytes[start..self.at];
                Value::Float(f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
            }
            other => return self.fault(format!("a field of wire type {other}: no SentencePiece model")),
        };
        Ok(Some((key >> 3, value)))
    }

    fn inner(&self, start: usize, end: usize) -> Message<'_> {
        Message { bytes: self.bytes, at: start, end }
    }
}

pub(super) fn read(bytes: &[u8]) -> Read<Model> {
    let mut model = Model {
        pieces: Vec::new(),
        kind: ModelType::Unigram,
        byte_fallback: false,
        normalizer: NormalizerSpec {
            charsmap: Vec::new(),
            add_prefix: true,
            remove_spaces: true,
            escape: true,
            suffix: false,
        },
    };
    let mut message = Message { bytes, at: 0, end: bytes.len() };
    while let Some((field, value)) = message.next()? {
        let Value::Bytes(start, end) = value else { continue };
        let inner = message.inner(start, end);
        match field {
            1 => model.pieces.push(piece(inner)?),
            2 => trainer(inner, &mut model)?,
            3 => normalizer(inner, &mut model.normalizer)?,
            _ => {}
        }
    }
    Ok(model)
}

fn piece(mut message: Message<'_>) -> Read<Piece> {
    let mut piece = Piece { text: String::new(), score: 0.0, kind: Kind::Normal };
    while let Some((field, value)) = message.next()? {
        match (field, value) {
            (1, Value::Bytes(start, end)) => {
                let Ok(text) = std::str::from_utf8(&message.bytes[start..end]) else {
                    return message.fault("a piece is not UTF-8");
                };
                text.clone_into(&mut piece.text);
            }
            (2, Value::Float(score)) if score.is_finite() && score.abs() < 1e6 => piece.score = score,
            (2, Value::Float(score)) => return message.fault(format!("a piece has the score {score}")),
            (3, Value::Number(kind)) => {
                piece.kind = match kind {
                    1 => Kind::Normal,
                    4 => Kind::UserDefined,
                    5 => Kind::Unused,
                    _ => Kind::Other,
                };
            }
            _ => {}
        }
    }
    if piece.text.is_empty() {
        return message.fault("a piece without text");
    }
    Ok(piece)
}

fn trainer(mut message: Message<'_>, model: &mut Model) -> Read<()> {
    while let Some((field, value)) = message.next()? {
        match (field, value) {
            (3, Value::Number(kind)) => {
                model.kind = match kind {
                    1 => ModelType::Unigram,
                    2 => ModelType::Bpe,
                    3 => ModelType::Word,
                    4 => ModelType::Char,
                    other => return message.fault(format!("a model of the unknown type {other}")),
                };
            }
            (24, Value::Number(suffix)) => model.normalizer.suffix = suffix != 0,
            (35, Value::Number(fallback)) => model.byte_fallback = fallback != 0,
            _ => {}
        }
    }
    Ok(())
}

fn normalizer(mut message: Message<'_>, spec: &mut NormalizerSpec) -> Read<()> {
    while let Some((field, value)) = message.next()? {
        match (field, value) {
            (2, Value::Bytes(start, end)) => spec.charsmap = message.bytes[start..end].to_vec(),
            (3, Value::Number(on)) => spec.add_prefix = on != 0,
            (4, Value::Number(on)) => spec.remove_spaces = on != 0,
            (5, Value::Number(on)) => spec.escape = on != 0,
            _ => {}
        }
    }
    Ok(())
}
