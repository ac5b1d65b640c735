//! What the names that authors give to parts of their pages say: classes, identifiers, roles.
//!
//! Names are cut into words (`sideBar-left` is `side`, `bar`, `left` and `sidebar`) before they are looked up, so that
//! `shadow` is not read as an `ad` and `discommented` not as a `comment`.

use crate::html::{Attributes, Tag};

/// Kind of a part of a page, by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// Says nothing.
    Unknown,
    /// Around the text by its element or role: navigation, footers, dialogs.
    Element,
    /// Around the text by its name: navigation, footers, adverts, related links.
    Boilerplate,
    /// Comments of readers, by its name.
    Comments,
    /// Likely the text itself.
    Content,
}

/// What a word of a name says; `whole` for the words of a name joined.
fn word_role(word: &str, whole: bool) -> Role {
    match word {
        "articlebody" | "articlecontent" | "articlecontainer" | "articledetail" | "articlemain"
        | "articletext" | "blogpost" | "bodycontent" | "bodytext" | "contentarticle" | "contentbody"
        | "contentmain" | "entrycontent" | "entrytext" | "fulltext" | "maincontent" | "mwcontenttext"
        | "mwparseroutput" | "newsbody" | "newscontent" | "newstext" | "pagecontent" | "postbody"
        | "postcontent" | "postentry" | "posttext" | "singlecontent" | "storybody" | "storybodytext"
        | "storycontent" | "textcontent" | "themecontent" | "rstcontent" | "storytext"
            if whole =>
        {
            Role::Content
        }
        "authorwidget" | "footerwidget" | "footerwidgets" | "sidebarwidget" | "sidebarwidgets" | "widget"
        | "widgetarea" | "widgets"
            if whole =>
        {
            Role::Boilerplate
        }
        "ad" | "ads" | "adsbygoogle" | "advert" | "advertisement" | "advertising" | "alsoread"
        | "authorbio" | "authorbox" | "backlink" | "banner" | "bannerad" | "bookmarks" | "breadcrumb"
        | "breadcrumbs" | "byline" | "consent" | "contentinfo" | "cookie" | "cookies" | "copyright"
        | "crumbs" | "dialog" | "donate" | "dropdown" | "editsection" | "followus" | "footer" | "gdpr"
        | "globalnav" | "hatnote" | "headerlink" | "hideme" | "jumpto" | "linklist" | "localnav"
        | "login" | "masthead" | "mediapromo" | "megamenu" | "menu" | "menubar" | "modal" | "mostpopular"
        | "mostread" | "mwjumplink" | "nav" | "navbar" | "navbox" | "navigation" | "navlinks"
        | "newsletter" | "nextprev" | "noprint" | "notification" | "outbrain" | "pager" | "pagination"
        | "paging" | "popular" | "popup" | "postmeta" | "postnav" | "prevnext" | "printonly" | "promo"
        | "promobox" | "promoted" | "readmore" | "readnext" | "recommend" | "recommendations"
        | "recommended" | "related" | "relatedarticles" | "relatedlinks" | "relatedposts"
        | "relatedstories" | "screenreader" | "search" | "searchbar" | "searchbox" | "searchform"
        | "share" | "shareaholic" | "sharebar" | "sharedaddy" | "sharing" | "sidebar" | "signature"
        | "signin" | "signup" | "sitemap" | "skip" | "skiplink" | "skiptocontent" | "skyscraper"
        | "social" | "socialmedia" | "socials" | "sphinxsidebar" | "sponsor" | "sponsored" | "subnav"
        | "subscribe" | "subscription" | "taboola" | "tagcloud" | "taglist" | "tags" | "teaser"
        | "teasers" | "ticker" | "toast" | "toc" | "toolbar" | "toolbox" | "tooltip" | "topbar"
        | "topnav" | "trending" | "userbox" | "vcard" | "whatsapp" => Role::Boilerplate,
        // A piece of a name like `comment-piece` or `commentDetail` may be the kind of an article.
        "comment" if !whole => Role::Boilerplate,
        "comment" | "comentarios" | "commentaires" | "commentform" | "commentlist" | "comments"
        | "disqus" | "fbcomments" | "kommentare" | "respond" | "shoutbox" | "trackback" | "usercomments" => {
            Role::Comments
        }
        _ => Role::Unknown,
    }
}

/// Calls `f` with each word of a name list, in small letters: the pieces between separators and at changes from small
/// to capital letters, and each whole name without separators. A name with a prefix such as `has-` or `category-` tells of
/// something else and counts only as a whole. At most 24 names of 64 bytes are looked at.
fn words(names: &str, mut f: impl FnMut(&str, bool)) {
    let mut piece = String::new();
    let mut whole = String::new();
    for name in names.split_ascii_whitespace().take(24) {
        if name.len() > 64 {
            continue;
        }
        let prefix = name.split(['-', '_']).next().filter(|prefix| prefix.len() < name.len());
        let pieces = !prefix.is_some_and(|prefix| {
            matches!(prefix, "category" | "has" | "no" | "not" | "tag" | "with" | "without")
        });
        whole.clear();
        piece.clear();
        let mut small = false;
        for c in name.chars() {
            let boundary = !c.is_ascii_alphanumeric() || small && c.is_ascii_uppercase();
            if boundary && !piece.is_empty() {
                if pieces {
                    f(&piece, false);
                }
                piece.clear();
            }
            small = c.is_ascii_lowercase();
            if c.is_ascii_alphanumeric() {
                piece.push(c.to_ascii_lowercase());
                whole.push(c.to_ascii_lowercase());
            }
        }
        if pieces && !piece.is_empty() && piece != whole {
            f(&piece, false);
        }
        f(&whole, true);
    }
}

/// Whether attributes keep an element from being shown.
pub(super) fn is_concealed(a: &Attributes<'_>) -> bool {
    if a.hidden.is_some() || a.aria_hidden.is_some_and(|v| v.eq_ignore_ascii_case("true")) {
        return true;
    }
    let Some(style) = a.style else { return false };
    let mut squeezed: String = style.chars().take(400).filter(|c| !c.is_whitespace()).collect();
    squeezed.make_ascii_lowercase();
    squeezed.contains("display:none") || squeezed.contains("visibility:hidden")
}

/// What an element is by its name and attributes.
pub(super) fn role(tag: Tag, a: &Attributes<'_>) -> Role {
    if matches!(tag, Tag::Nav | Tag::Footer | Tag::Aside | Tag::Menu) {
        return Role::Element;
    }
    if let Some(role) = a.role {
        match role.to_ascii_lowercase().as_str() {
            "navigation" | "banner" | "contentinfo" | "complementary" | "search" | "dialog"
            | "alertdialog" | "menu" | "menubar" | "toolbar" | "tooltip" | "tablist" => {
                return Role::Element;
            }
            "main" | "article" => return Role::Content,
            _ => {}
        }
    }
    if a.itemprop.is_some_and(|p| p.eq_ignore_ascii_case("articleBody")) {
        return Role::Content;
    }
    if matches!(tag, Tag::Article | Tag::Main) {
        return Role::Content;
    }
    // A piece of a line, a paragraph, or a cell is no part of the page: a highlighter's `comment` is code.
    if !names_count(tag) {
        return Role::Unknown;
    }
    let mut found = Role::Unknown;
    for names in [a.id.filter(|id| !is_slug(tag, a.class, id)), a.class].into_iter().flatten() {
        words(names, |word, whole| match word_role(word, whole) {
            Role::Content => found = Role::Content,
            Role::Comments if found != Role::Content => found = Role::Comments,
            said if found == Role::Unknown => found = said,
            _ => {}
        });
    }
    found
}

/// Whether the identifier of a section is its heading in small letters, as generators of manuals write them: then
/// `import-related-attributes` says what the section is about, and not that it is around the text.
fn is_slug(tag: Tag, class: Option<&str>, id: &str) -> bool {
    let section = tag == Tag::Section
        || class.is_some_and(|names| names.split_ascii_whitespace().any(|name| name.starts_with("sect")));
    section && id.split('-').filter(|word| !word.is_empty()).count() > 2
}

/// Elements that pages are divided into.
fn names_count(tag: Tag) -> bool {
    use Tag::*;
    tag.is_block()
        && tag.heading().is_none()
        && !matches!(
            tag,
            P | Pre | Blockquote | Td | Th | Tr | Tbody | Thead | Tfoot | Caption | Figure | Body | Html
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(class: &str) -> Role {
        role(Tag::Div, &Attributes { class: Some(class), ..Attributes::default() })
    }

    #[test]
    fn names_are_read_as_words() {
        for class in ["siteFooter", "x sideBar", "share_buttons", "ad-slot", "wp-block related"] {
            assert_eq!(named(class), Role::Boilerplate, "{class}");
        }
        for class in ["comments", "post-comments", "related comments"] {
            assert_eq!(named(class), Role::Comments, "{class}");
        }
        for class in ["tag-cloud", "no-print", "widget", "widget-area", "comment-piece"] {
            assert_eq!(named(class), Role::Boilerplate, "{class}");
        }
        for class in ["has-sidebar", "tag-ads", "category_social", "elementor-widget"] {
            assert_eq!(named(class), Role::Unknown, "{class}");
        }
        for class in
            ["", "shadow", "header-image", "discommented", "container", "loading", "address", "badge"]
        {
            assert_eq!(named(class), Role::Unknown, "{class}");
        }
        let section =
            |tag, id, class| role(tag, &Attributes { id: Some(id), class, ..Attributes::default() });
        assert_eq!(section(Tag::Section, "import-related-attributes", None), Role::Unknown);
        assert_eq!(section(Tag::Div, "import-related-attributes", Some("sect2")), Role::Unknown);
        assert_eq!(section(Tag::Section, "related-posts", None), Role::Boilerplate);
        assert_eq!(section(Tag::Section, "see-related-posts", Some("related")), Role::Boilerplate);
        assert_eq!(named("row article-body"), Role::Content);
        assert_eq!(named("articleBody share"), Role::Content);
    }
}
