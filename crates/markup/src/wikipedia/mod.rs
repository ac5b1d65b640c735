//! Dumps of MediaWiki (`pages-articles.xml`), and their wikitext as plain text.

mod inline;
mod regions;
mod templates;
mod wikitext;

pub use wikitext::plain_text;

use crate::error::{MarkupError, MarkupLimits};
use crate::xml::{XmlEvent, XmlReader};

/// Names of namespaces whose links are not text: those of files and categories in a language.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Namespaces {
    /// Names in small letters.
    pub hidden: Vec<String>,
}

impl Namespaces {
    /// The namespaces that the head of a dump (`<siteinfo>`) states, beside the English ones, which hold in every language. A head
    /// that cannot be read gives the English ones.
    pub fn of_head(head: &str) -> Namespaces {
        const HIDDEN_KEYS: [&str; 2] = ["6", "14"];
        let mut hidden: Vec<String> = ["file", "image", "category", "media"].map(String::from).to_vec();
        let Some(start) = head.find("<siteinfo") else { return Namespaces { hidden } };
        let Ok(mut reader) = XmlReader::new(&head[start..], &MarkupLimits::default()) else {
            return Namespaces { hidden };
        };
        let mut wanted = false;
        while let Ok(Some(event)) = reader.next() {
            match event {
                XmlEvent::Start(element) => {
                    wanted = element.name() == "namespace"
                        && element.attribute("key").is_some_and(|key| HIDDEN_KEYS.contains(&key.as_str()));
                }
                XmlEvent::Text(name) if wanted => hidden.push(name.trim().to_lowercase()),
                XmlEvent::Text(_) => {}
                XmlEvent::End => wanted = false,
            }
        }
        Namespaces { hidden }
    }
}

/// A page of a dump.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WikiPage {
    /// Title with its namespace.
    pub title: String,
    /// Number of the namespace; articles have 0.
    pub namespace: String,
    /// Number of the page.
    pub id: String,
    /// Title that the page redirects to.
    pub redirect: Option<String>,
    /// When the revision was made, in ISO 8601.
    pub timestamp: Option<String>,
    /// Content model, such as `wikitext`; empty where the dump states none.
    pub model: String,
    /// The content.
    pub wikitext: String,
}

impl WikiPage {
    /// Reads `<page>…</page>`. Of several revisions the last one counts.
    ///
    /// # Errors
    /// The XML is damaged, too large or nested too deep.
    pub fn parse(xml: &str, limits: &MarkupLimits) -> Result<WikiPage, MarkupError> {
        let mut reader = XmlReader::new(xml, limits)?;
        let mut page = WikiPage::default();
        let mut path: Vec<String> = Vec::new();
        while let Some(event) = reader.next()? {
            match event {
                XmlEvent::Start(element) => {
                    let name = element.name();
                    match name.as_str() {
                        "redirect" => page.redirect = Some(element.attribute("title").unwrap_or_default()),
                        "revision" => {
                            (page.wikitext, page.timestamp, page.model) =
                                (String::new(), None, String::new());
                        }
                        _ => {}
                    }
                    path.push(name);
                }
                XmlEvent::End => {
                    path.pop();
                }
                XmlEvent::Text(text) => {
                    let names: Vec<&str> = path.iter().map(String::as_str).collect();
                    match names[..] {
                        [_, "title"] => page.title.push_str(&text),
                        [_, "ns"] => page.namespace.push_str(&text),
                        [_, "id"] => page.id.push_str(&text),
                        [_, "revision", "text"] => page.wikitext.push_str(&text),
                        [_, "revision", "model"] => page.model.push_str(&text),
                        [_, "revision", "timestamp"] => {
                            page.timestamp.get_or_insert_default().push_str(&text);
                        }
                        _ => {}
                    }
                }
            }
        }
        Ok(page)
    }
}
