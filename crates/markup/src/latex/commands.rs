//! What each command and environment of LaTeX means for the text.

/// Effect of a command on the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Command {
    /// Its argument is a heading.
    Heading,
    /// The command and this number of arguments are left out.
    Drop(usize),
    /// So many arguments are left out, and what follows stays.
    Unwrap(usize),
    /// The command stands for this text.
    Is(&'static str),
    /// It puts this combining character over or under the next letter.
    Accent(char),
    /// The command ends the line.
    Line,
    /// The command ends the paragraph.
    Paragraph,
    /// The command begins an item of a list.
    Item,
    /// Its argument, delimited by any character, is text as it is written.
    Verbatim,
    /// Its argument stands in parentheses: a footnote.
    Aside,
    /// Its argument is shown though its surroundings are not: a caption.
    Caption,
}

/// Effect of an environment on the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Environment {
    /// The environment is left out whole.
    Drop,
    /// The environment is kept as it is written: mathematics.
    Math,
    /// Its content stays as it is written: code.
    Verbatim,
    /// Only captions in it stay: figures and tables.
    Float,
    /// It is text, in paragraphs of its own; so many arguments of it are left out.
    Text(usize),
}

/// Returns the effect of a command.
pub(super) fn command(name: &str) -> Option<Command> {
    use Command::{Accent, Aside, Caption, Drop, Heading, Is, Item, Line, Paragraph, Unwrap, Verbatim};
    Some(match name {
        "part" | "chapter" | "section" | "subsection" | "subsubsection" | "paragraph" | "subparagraph" => {
            Heading
        }
        "title" | "author" | "date" | "thanks" | "affiliation" | "affil" | "email" | "address"
        | "institute" | "institution" | "keywords" | "label" | "ref" | "eqref" | "pageref" | "autoref"
        | "cref" | "Cref" | "nameref" | "vspace" | "hspace" | "includegraphics" | "bibliography"
        | "bibliographystyle" | "addbibresource" | "usepackage" | "documentclass" | "documentstyle"
        | "RequirePackage" | "pagestyle" | "thispagestyle" | "pagenumbering" | "graphicspath"
        | "hypersetup" | "input" | "include" | "phantom" | "hphantom" | "vphantom" | "index" | "glossary"
        | "nocite" | "markboth" | "theoremstyle" | "color" | "fontsize" | "linespread" | "captionsetup"
        | "geometry" | "footnotemark" | "orcid" | "titlerunning" | "authorrunning" | "tikzset" | "rule"
        | "hyphenation" | "newtheorem" | "usetikzlibrary" | "ccsdesc" | "acmConference" | "setlist" => {
            Drop(if matches!(name, "fontsize" | "rule" | "newtheorem" | "markboth") { 2 } else { 1 })
        }
        "setlength" | "addtolength" | "setcounter" | "addtocounter" | "newenvironment"
        | "renewenvironment" | "definecolor" | "addcontentsline" | "titleformat" | "numberwithin" => Drop(
            if matches!(name, "newenvironment" | "renewenvironment" | "definecolor" | "addcontentsline") {
                3
            } else {
                2
            },
        ),
        "textcolor" | "href" | "colorbox" | "parbox" | "makebox" | "scalebox" | "rotatebox"
        | "texorpdfstring" | "foreignlanguage" | "multirow" | "raisebox" | "hyperref" => Unwrap(1),
        "resizebox" | "fcolorbox" | "multicolumn" => Unwrap(2),
        "footnote" | "footnotetext" => Aside,
        "caption" | "captionof" | "subcaption" => Caption,
        "item" => Item,
        "\\" | "newline" | "linebreak" | "tabularnewline" => Line,
        "par" | "newpage" | "clearpage" | "bigskip" | "medskip" | "smallskip" | "maketitle" | "appendix"
        | "tableofcontents" => Paragraph,
        "verb" | "lstinline" | "mintinline" => Verbatim,
        "`" => Accent('\u{300}'),
        "'" => Accent('\u{301}'),
        "^" => Accent('\u{302}'),
        "~" => Accent('\u{303}'),
        "=" => Accent('\u{304}'),
        "u" => Accent('\u{306}'),
        "." => Accent('\u{307}'),
        "\"" => Accent('\u{308}'),
        "r" => Accent('\u{30a}'),
        "H" => Accent('\u{30b}'),
        "v" => Accent('\u{30c}'),
        "d" => Accent('\u{323}'),
        "c" => Accent('\u{327}'),
        "k" => Accent('\u{328}'),
        "b" => Accent('\u{331}'),
        _ => Is(stands_for(name)?),
    })
}

/// The text that a command without arguments stands for.
fn stands_for(name: &str) -> Option<&'static str> {
    Some(match name {
        "ss" => "ß",
        "ae" => "æ",
        "AE" => "Æ",
        "oe" => "œ",
        "OE" => "Œ",
        "o" => "ø",
        "O" => "Ø",
        "aa" => "å",
        "AA" => "Å",
        "l" => "ł",
        "L" => "Ł",
        "i" => "ı",
        "j" => "ȷ",
        "dh" => "ð",
        "th" => "þ",
        "S" => "§",
        "P" => "¶",
        "copyright" | "textcopyright" => "©",
        "textregistered" => "®",
        "texttrademark" => "™",
        "pounds" | "textsterling" => "£",
        "euro" | "texteuro" => "€",
        "dots" | "ldots" | "textellipsis" => "…",
        "textendash" => "–",
        "textemdash" => "—",
        "textbackslash" => "\\",
        "textasciitilde" => "~",
        "textasciicircum" => "^",
        "textbar" => "|",
        "textless" => "<",
        "textgreater" => ">",
        "textquotedblleft" => "“",
        "textquotedblright" => "”",
        "textbullet" => "•",
        "textdegree" | "degree" => "°",
        "LaTeX" => "LaTeX",
        "TeX" => "TeX",
        "BibTeX" => "BibTeX",
        "&" => "&",
        "%" => "%",
        "$" => "$",
        "#" => "#",
        "_" => "_",
        "{" => "{",
        "}" => "}",
        "/" | "-" | "!" | "@" | "+" | ")" | "]" => "",
        " " | "," | ";" | ":" | ">" | "\n" | "\t" | "quad" | "qquad" | "enspace" | "thinspace" | "space"
        | "hfill" => " ",
        _ => return None,
    })
}

/// What an environment does. Unknown ones are text.
pub(super) fn environment(name: &str) -> Environment {
    match name.trim_end_matches('*') {
        "thebibliography"
        | "filecontents"
        | "tikzpicture"
        | "pspicture"
        | "picture"
        | "comment"
        | "CCSXML"
        | "IEEEkeywords"
        | "keyword"
        | "frontmatter-authors"
        | "forest"
        | "overpic" => Environment::Drop,
        "equation" | "align" | "gather" | "multline" | "eqnarray" | "flalign" | "alignat" | "displaymath"
        | "math" | "dmath" | "IEEEeqnarray" => Environment::Math,
        "verbatim" | "lstlisting" | "minted" | "Verbatim" | "alltt" => Environment::Verbatim,
        "figure" | "table" | "wrapfigure" | "wraptable" | "subfigure" | "subtable" | "sidewaysfigure"
        | "sidewaystable" | "longtable" | "tabular" | "tabularx" | "tabulary" | "supertabular"
        | "deluxetable" | "array" | "teaserfigure" | "SCfigure" => Environment::Float,
        "minipage" | "multicols" | "adjustbox" | "spacing" | "adjustwidth" => Environment::Text(1),
        _ => Environment::Text(0),
    }
}

/// Whether a command is a citation: `\cite`, `\citep`, `\parencite`, …
pub(super) fn is_citation(name: &str) -> bool {
    name.strip_prefix(['C', 'c']).is_some_and(|rest| rest.starts_with("ite"))
        || matches!(
            name,
            "parencite" | "textcite" | "footcite" | "autocite" | "shortcite" | "onlinecite" | "Textcite"
        )
}
