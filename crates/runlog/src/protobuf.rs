//! Protocol Buffers wire format: the few field types that TensorBoard's messages need, written by hand.

/// Appends a base-128 varint.
pub(crate) fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends an integer or enum field.
pub(crate) fn integer(out: &mut Vec<u8>, field: u8, value: u64) {
    out.push(field << 3);
    varint(out, value);
}

/// Appends a `double` field.
pub(crate) fn double(out: &mut Vec<u8>, field: u8, value: f64) {
    out.push(field << 3 | 1);
    out.extend(value.to_le_bytes());
}

/// Appends a `float` field.
pub(crate) fn float(out: &mut Vec<u8>, field: u8, value: f32) {
    out.push(field << 3 | 5);
    out.extend(value.to_le_bytes());
}

/// Appends a `bytes` field or a message that is encoded already.
pub(crate) fn bytes(out: &mut Vec<u8>, field: u8, value: &[u8]) {
    out.push(field << 3 | 2);
    varint(out, value.len() as u64);
    out.extend(value);
}

/// Appends a `string` field.
pub(crate) fn string(out: &mut Vec<u8>, field: u8, value: &str) {
    bytes(out, field, value.as_bytes());
}

/// Appends a message field that `content` fills.
pub(crate) fn message(out: &mut Vec<u8>, field: u8, content: impl FnOnce(&mut Vec<u8>)) {
    out.push(field << 3 | 2);
    let start = out.len();
    content(out);
    let end = out.len();
    // The length stands before what it counts and is known after it.
    varint(out, (end - start) as u64);
    let length = out.len() - end;
    out[start..].rotate_right(length);
}
