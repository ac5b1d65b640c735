//! From bytes to text: which encoding, and what to do where it fails.
//!
//! The order follows the HTML standard (byte order mark, transport, `<meta>`, guess) with two corrections that
//! archives need, both decided by the bytes alone: text that is valid UTF-8 and not plain ASCII is UTF-8 whatever a
//! single-byte label says (no other text looks like that by chance), and a label "UTF-8" on text that is not is a
//! reason to guess.

mod declared;
mod mojibake;

pub use mojibake::repair_mojibake;

use chardetng::{EncodingDetector, Iso2022JpDetection, Utf8Detection};
use encoding_rs::{Encoding, REPLACEMENT, UTF_8, UTF_16BE, UTF_16LE, WINDOWS_1252};

/// Evidence by which the encoding was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EncodingSource {
    /// A byte order mark.
    Bom,
    /// The `charset` of a `Content-Type`.
    Header,
    /// `<meta charset>` or `<meta http-equiv=content-type>` in the first 1024 bytes or a longer head, or else the `encoding` of an XML declaration.
    Meta,
    /// The bytes are valid UTF-8.
    Valid,
    /// A guess from the frequencies of bytes.
    Guess,
}

/// Text that was bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decoded {
    /// The text.
    pub text: String,
    /// Name of the encoding in the Encoding Standard, such as `windows-1252`.
    pub encoding: &'static str,
    /// Evidence by which it was found.
    pub source: EncodingSource,
    /// Sequences that are invalid in the encoding, each now one U+FFFD.
    pub replaced: usize,
}

/// Bytes that the guess looks at: enough for any language, and the guess stays the same for longer pages.
const GUESSED: usize = 64 << 10;

/// Decodes a document. `content_type` is the transport's, such as `text/html; charset=utf-8`; `host_suffix` the last
/// label of the host (`jp`, `de`), which helps the guess.
pub fn decode(bytes: &[u8], content_type: Option<&str>, host_suffix: Option<&str>) -> Decoded {
    if let Some((encoding, length)) = Encoding::for_bom(bytes) {
        return finish(&bytes[length..], encoding, EncodingSource::Bom);
    }
    let valid = std::str::from_utf8(bytes).is_ok();
    // ISO-2022-JP writes Japanese in ASCII bytes behind an escape.
    let escaped = memchr::memmem::find(bytes, b"\x1b$").is_some();
    let valid = valid && !escaped;
    let ascii = valid && bytes.is_ascii();
    let named = content_type
        .and_then(declared::transport)
        .map(|e| (e, EncodingSource::Header))
        .or_else(|| declared::page(bytes).map(|e| (e, EncodingSource::Meta)));
    if let Some((encoding, source)) = named {
        let stateful = encoding == encoding_rs::ISO_2022_JP || encoding == UTF_16LE || encoding == UTF_16BE;
        if encoding == UTF_8 && valid || ascii && !stateful {
            return finish(bytes, encoding, source);
        }
        if valid && !stateful && looks_like_utf8(bytes) {
            return finish(bytes, UTF_8, EncodingSource::Valid);
        }
        if encoding != UTF_8 || mostly_utf8(bytes) {
            return finish(bytes, encoding, source);
        }
    } else if valid {
        return finish(bytes, UTF_8, EncodingSource::Valid);
    } else if !escaped && mostly_utf8(bytes) {
        return finish(bytes, UTF_8, EncodingSource::Guess);
    }
    let mut detector = EncodingDetector::new(Iso2022JpDetection::Allow);
    detector.feed(&bytes[..bytes.len().min(GUESSED)], true);
    let suffix = host_suffix.filter(|s| !s.is_empty() && s.is_ascii()).map(str::to_ascii_lowercase);
    let hint = suffix.as_deref().filter(|s| s.bytes().all(|b| b.is_ascii_lowercase())).map(str::as_bytes);
    let encoding = detector.guess(hint, Utf8Detection::Allow);
    finish(bytes, encoding, EncodingSource::Guess)
}

fn finish(bytes: &[u8], encoding: &'static Encoding, source: EncodingSource) -> Decoded {
    let encoding = if encoding == REPLACEMENT { WINDOWS_1252 } else { encoding };
    let (text, _) = encoding.decode_without_bom_handling(bytes);
    let replaced = if encoding == UTF_8 && std::str::from_utf8(bytes).is_ok() {
        0
    } else {
        text.matches('\u{fffd}').count()
    };
    Decoded { text: text.into_owned(), encoding: encoding.name(), source, replaced }
}

/// Valid UTF-8 with enough characters outside ASCII that no single-byte text would be so by chance.
fn looks_like_utf8(bytes: &[u8]) -> bool {
    bytes.iter().any(|b| *b >= 0xc2)
}

/// UTF-8 in which a few sequences are broken (cut in the middle, or a foreign piece pasted in): at least 20 valid
/// ones for each broken one.
fn mostly_utf8(bytes: &[u8]) -> bool {
    let (mut good, mut bad) = (0usize, 0usize);
    for chunk in bytes.utf8_chunks() {
        good += chunk.valid().bytes().filter(|b| *b >= 0xc2).count();
        bad += usize::from(!chunk.invalid().is_empty());
    }
    bad == 0 || good >= 20 * bad
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn told(bytes: &[u8], header: Option<&str>) -> (&'static str, EncodingSource, String) {
        let d = decode(bytes, header, None);
        (d.encoding, d.source, d.text)
    }

    #[test]
    fn the_order_is_mark_header_meta_guess() {
        use EncodingSource::*;
        let latin = b"caf\xe9 au lait";
        assert_eq!(told(b"\xef\xbb\xbfa", Some("x; charset=latin1")), ("UTF-8", Bom, "a".into()));
        assert_eq!(told(b"\xff\xfea\0", None), ("UTF-16LE", Bom, "a".into()));
        assert_eq!(told(latin, Some("text/html; Charset=\"ISO-8859-1\"")).0, "windows-1252");
        assert_eq!(told(latin, Some("text/html; charset=koi8-r")), ("KOI8-R", Header, "cafИ au lait".into()));
        let page = b"<html><!-- <meta charset=koi8-r> --><META http-equiv=Content-Type content='text/html; charset=windows-1251'>\xcf";
        let (encoding, source, text) = told(page, None);
        assert_eq!((encoding, source), ("windows-1251", Meta));
        assert!(text.ends_with('П'));
        assert_eq!(told(b"<?xml version='1.0' encoding='shift_jis'?>\x83\x65", None).0, "Shift_JIS");
        assert_eq!(
            told(b"<meta charset=utf-16>plain", None),
            ("UTF-8", Meta, "<meta charset=utf-16>plain".into())
        );
    }

    #[test]
    fn a_false_label_is_corrected_by_the_bytes() {
        use EncodingSource::*;
        let (e, s, t) = told("naïve — 日本".as_bytes(), Some("text/html; charset=iso-8859-1"));
        assert_eq!((e, s, t.as_str()), ("UTF-8", Valid, "naïve — 日本"));
        let latin = "Ein Mädchen hört über die schöne Straße, für große Bären möglich.";
        let bytes: Vec<u8> = latin.chars().map(|c| c as u8).collect();
        let (e, s, t) = told(&bytes, Some("text/html; charset=utf-8"));
        assert_eq!((e, s, t.as_str()), ("windows-1252", Guess, latin));
        // A cut sequence at the end does not make it another encoding.
        let cut = &"日本語のテキスト".repeat(10).into_bytes()[..100];
        let d = decode(cut, Some("text/html; charset=utf-8"), None);
        assert_eq!((d.encoding, d.replaced), ("UTF-8", 1));
    }

    #[test]
    fn guesses_languages() {
        let text = "Это простой русский текст, в котором достаточно букв, чтобы угадать кодировку.";
        for encoding in [encoding_rs::WINDOWS_1251, encoding_rs::KOI8_R] {
            let (bytes, _, _) = encoding.encode(text);
            assert_eq!(told(&bytes, None).2, text);
        }
        let text = "これは日本語の文章です。文字コードを推定するために十分な長さがあります。";
        for encoding in [encoding_rs::SHIFT_JIS, encoding_rs::EUC_JP, encoding_rs::ISO_2022_JP] {
            let (bytes, _, _) = encoding.encode(text);
            assert_eq!(told(&bytes, None).2, text, "{}", encoding.name());
        }
    }

    proptest! {
        #[test]
        fn fuzz_encoding_arbitrary_bytes(bytes in prop::collection::vec(any::<u8>(), 0..2000), header in ".{0,40}", host in ".{0,5}") {
            let a = decode(&bytes, Some(&header), Some(&host));
            prop_assert_eq!(&a, &decode(&bytes, Some(&header), Some(&host)));
            repair_mojibake(&a.text);
        }

        #[test]
        fn utf8_passes_unchanged(text in "\\PC{0,200}") {
            prop_assume!(!text.starts_with('\u{feff}'));
            prop_assert_eq!(decode(text.as_bytes(), Some("text/html; charset=utf-8"), None).text, text);
        }
    }
}
