//! Text that was UTF-8, was read as windows-1252, and was written as UTF-8 again: `cafÃ©` for `café`.
//!
//! The same damage that ftfy repairs (Speer 2019), by one careful rule: a run of characters outside ASCII is taken
//! back to bytes only if all of them have a byte in windows-1252 and the bytes are valid UTF-8. Ordinary text hardly
//! ever has such a run: a single accented letter is none, an accented letter before two dashes (`ä––`) would be one.

use encoding_rs::WINDOWS_1252;

/// Repairs runs of double-encoded characters, damage on damage included. None if there is nothing to repair.
pub fn repair_mojibake(text: &str) -> Option<String> {
    let mut current = once(text)?;
    // Each layer of damage at least doubles a run; three have been seen in the wild.
    for _ in 0..3 {
        match once(&current) {
            Some(better) => current = better,
            None => break,
        }
    }
    Some(current)
}

/// The windows-1252 byte of a character. C1 controls stand for themselves: five bytes have no character.
fn byte_of(c: char) -> Option<u8> {
    let code = u32::from(c);
    if (0x80..0x100).contains(&code) {
        return Some(code as u8);
    }
    let mut utf8 = [0; 4];
    let (bytes, _, unmappable) = WINDOWS_1252.encode(c.encode_utf8(&mut utf8));
    (!unmappable && bytes.len() == 1).then(|| bytes[0])
}

fn once(text: &str) -> Option<String> {
    let mut out = String::new();
    let mut copied = 0;
    let mut run: Vec<u8> = Vec::new();
    let mut start = 0;
    let mut whole = true;
    let mut changed = false;
    let mut close = |run: &mut Vec<u8>, start: usize, end: usize, whole: bool| {
        if whole
            && run.len() > 1
            && let Ok(repaired) = std::str::from_utf8(run)
        {
            out.push_str(&text[copied..start]);
            out.push_str(repaired);
            copied = end;
            changed = true;
        }
        run.clear();
    };
    for (at, c) in text.char_indices() {
        if c.is_ascii() {
            if !run.is_empty() || !whole {
                close(&mut run, start, at, whole);
                whole = true;
            }
            continue;
        }
        if run.is_empty() && whole {
            start = at;
        }
        match byte_of(c) {
            Some(b) => run.push(b),
            None => whole = false,
        }
    }
    close(&mut run, start, text.len(), whole);
    if !changed {
        return None;
    }
    out.push_str(&text[copied..]);
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn damaged(text: &str) -> String {
        text.bytes()
            .map(|b| {
                let one = [b];
                let (c, _) = WINDOWS_1252.decode_without_bom_handling(&one);
                c.chars().next().unwrap()
            })
            .collect()
    }

    #[test]
    fn repairs_what_is_damaged_and_nothing_else() {
        assert_eq!(repair_mojibake("cafÃ© and â€œquotesâ€\u{9d}").unwrap(), "café and “quotes”");
        assert_eq!(repair_mojibake(&damaged(&damaged("naïve"))).unwrap(), "naïve");
        for fine in ["", "plain", "café", "ÀÉÎ", "日本語", "Ã", "“fine”", "Ünïcödé — ok", "№ ©"]
        {
            assert_eq!(repair_mojibake(fine), None, "{fine}");
        }
    }

    proptest! {
        #[test]
        fn takes_back_damage(text in "[a-z ]{0,5}[äöüßéèñçøå]{1,4}[a-z ]{0,9}[а-яё]{0,6}") {
            prop_assert_eq!(repair_mojibake(&damaged(&text)), Some(text));
        }
    }
}
