//! XML events with references resolved and limits checked, on top of `quick-xml`.
//!
//! `quick-xml` never expands declared entities: a reference is an event. The five entities of XML, numeric references and the
//! named characters of HTML (which JATS takes from its DTD) are resolved; any other name gives nothing. So a document of nested
//! entity declarations ("billion laughs") costs what its bytes cost.

use crate::error::{MarkupError, MarkupLimits};
use bessemer_web::html::decode_references;
use quick_xml::Reader;
use quick_xml::events::{BytesStart, Event};
use std::borrow::Cow;

/// A part of an XML document.
pub(crate) enum XmlEvent<'a> {
    /// The start of an element.
    Start(Element<'a>),
    /// The end of an element.
    End,
    /// Text of an element.
    Text(Cow<'a, str>),
}

/// The start of an element.
pub(crate) struct Element<'a>(BytesStart<'a>);

impl Element<'_> {
    /// The name without its namespace prefix.
    pub(crate) fn name(&self) -> String {
        String::from_utf8_lossy(self.0.local_name().as_ref()).into_owned()
    }

    /// The value of an attribute, its references resolved.
    pub(crate) fn attribute(&self, name: &str) -> Option<String> {
        let mut attributes = self.0.attributes();
        let found =
            attributes.with_checks(false).flatten().find(|found| found.key.as_ref() == name.as_bytes())?;
        let value = String::from_utf8_lossy(&found.value).into_owned();
        Some(decode_references(&value).into_owned())
    }
}

/// Reads the events of a document.
pub(crate) struct XmlReader<'a> {
    reader: Reader<&'a [u8]>,
    limits: MarkupLimits,
    depth: usize,
    /// The element that was just started has no content: its end comes next.
    ends: bool,
}

impl<'a> XmlReader<'a> {
    /// A reader of `xml`.
    ///
    /// # Errors
    /// The document is too large.
    pub(crate) fn new(xml: &'a str, limits: &MarkupLimits) -> Result<XmlReader<'a>, MarkupError> {
        limits.check_bytes(xml.len())?;
        let reader = Reader::from_str(xml.strip_prefix('\u{feff}').unwrap_or(xml));
        Ok(XmlReader { reader, limits: *limits, depth: 0, ends: false })
    }

    /// The next event; none at the end of the document. Declarations, comments and instructions are passed over.
    ///
    /// # Errors
    /// The document is damaged, ends inside an element or is nested too deep.
    pub(crate) fn next(&mut self) -> Result<Option<XmlEvent<'a>>, MarkupError> {
        if std::mem::take(&mut self.ends) {
            self.depth -= 1;
            return Ok(Some(XmlEvent::End));
        }
        loop {
            let malformed =
                |problem: String, at: u64| MarkupError::Malformed(format!("{problem} at byte {at}"));
            let event = self.reader.read_event();
            let at = self.reader.buffer_position();
            return match event {
                Err(error) => Err(malformed(error.to_string(), at)),
                Ok(Event::Start(start)) => {
                    self.depth += 1;
                    self.limits.check_depth(self.depth)?;
                    Ok(Some(XmlEvent::Start(Element(start))))
                }
                Ok(Event::Empty(start)) => {
                    self.depth += 1;
                    self.ends = true;
                    Ok(Some(XmlEvent::Start(Element(start))))
                }
                Ok(Event::End(_)) => {
                    self.depth = self.depth.saturating_sub(1);
                    Ok(Some(XmlEvent::End))
                }
                Ok(Event::Text(text)) => Ok(Some(XmlEvent::Text(text_of(text.into_inner())))),
                Ok(Event::CData(text)) => Ok(Some(XmlEvent::Text(text_of(text.into_inner())))),
                Ok(Event::GeneralRef(name)) => {
                    let reference = format!("&{};", String::from_utf8_lossy(&name));
                    match decode_references(&reference) {
                        resolved if resolved == reference => continue,
                        resolved => Ok(Some(XmlEvent::Text(Cow::Owned(resolved.into_owned())))),
                    }
                }
                Ok(Event::Eof) if self.depth > 0 => {
                    Err(malformed("the document ends inside an element".into(), at))
                }
                Ok(Event::Eof) => Ok(None),
                Ok(Event::Decl(_) | Event::PI(_) | Event::Comment(_) | Event::DocType(_)) => continue,
            };
        }
    }
}

/// Bytes of a document that is UTF-8 as a whole.
fn text_of(bytes: Cow<'_, [u8]>) -> Cow<'_, str> {
    match bytes {
        Cow::Borrowed(bytes) => String::from_utf8_lossy(bytes),
        Cow::Owned(bytes) => Cow::Owned(String::from_utf8_lossy(&bytes).into_owned()),
    }
}
