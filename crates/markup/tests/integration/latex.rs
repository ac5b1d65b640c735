use bessemer_markup::latex::paper;
use bessemer_markup::{MarkupError, MarkupLimits};

fn text_of(files: &[(&str, &str)]) -> Result<String, MarkupError> {
    let files: Vec<(String, String)> =
        files.iter().map(|(name, text)| ((*name).to_string(), (*text).to_string())).collect();
    paper(&files, &MarkupLimits::default()).map(|paper| paper.text)
}

/// The text of a document with this body.
fn body(text: &str) -> String {
    text_of(&[(
        "a.tex",
        &format!("\\documentclass{{article}}\\begin{{document}}{text}\\end{{document}} rest"),
    )])
    .unwrap()
}

#[test]
fn a_paper_of_several_files_is_title_abstract_sections_and_formulas() {
    let main = r"\documentclass[11pt]{article}
\usepackage{amsmath} % a comment
\newcommand{\loss}{\mathcal{L}}
\newcommand{\vect}[1]{\mathbf{#1}}
\def\ie{i.e.\xspace}
\title{Of Steel\thanks{Funded by nobody} and
  Iron}
\author{Jane Doe}
\begin{document}
\maketitle
\begin{abstract}
We pour \emph{steel}~\cite{bessemer1856}, \ie{} cheap steel.
\end{abstract}
\section{Method}\label{sec:m}
\input{parts/method}
\begin{figure}[t]
\includegraphics[width=3cm]{a.png}
\caption{The \textbf{converter}.}
\end{figure}
\begin{thebibliography}{9}\bibitem{bessemer1856} H. Bessemer, Patent. \end{thebibliography}
\end{document}";
    let method = "The loss $\\loss(\\theta)$ is % hidden\nsmall.\n\nAir is blown\\footnote{From below.} through, see Section~\\ref{sec:m}:\n\
        \\begin{equation}\n  \\loss = 1 - \\vect{x}\n\\end{equation}\n\\begin{itemize}\n\\item 10\\% of {\\it carbon}\n\\item the rest\n\\end{itemize}\n";
    let text =
        text_of(&[("paper/main.tex", main), ("paper/parts/method.tex", method), ("paper/a.bib", "@x")])
            .unwrap();
    let wanted = "Of Steel and Iron\n\nAbstract\n\nWe pour steel, i.e. cheap steel.\n\nMethod\n\n\
        The loss $\\mathcal{L}(\\theta)$ is small.\n\nAir is blown (From below.) through, see Section:\n\n\
        \\begin{equation}\n  \\mathcal{L}= 1 - \\vect{x}\n\\end{equation}\n\n- 10% of carbon\n- the rest\n\nThe converter.";
    assert_eq!(text, wanted);
}

#[test]
fn characters_and_commands_are_those_that_tex_sets() {
    for (source, wanted) in [
        (
            r#"G\"odel, Erd\H{o}s, \'{e}t\'e, na\"{\i}ve, \c{c}a, \AA ngstr\"om"#,
            "Gödel, Erdős, été, naïve, ça, ÅngstrÖm".replace('Ö', "ö").as_str(),
        ),
        ("``quoted'' -- a range --- a dash, it's", "\"quoted\" – a range — a dash, it's"),
        (r"5\% \& \$3 \_x\_ \{a\} \textbackslash", r"5% & $3 _x_ {a} \"),
        (r"\textcolor{red}{warm} \href{http://a.b}{link} \url{http://a.b/c_d}", "warm link http://a.b/c_d"),
        (r"a\\b \newline c", "a\nb\nc"),
        (r"\verb|x_1 % {| and \verb+$+", "x_1 % { and $"),
        ("\\begin{verbatim}\n% kept {\n  as it is\n\\end{verbatim}", "% kept {\n  as it is"),
        (r"price of $5 and no more", "price of $5 and no more"),
        (r"\iffalse hidden \fi shown", "shown"),
        (r"\(a_1\) and \[ b^2 \] end", "\\(a_1\\) and\n\n\\[ b^2 \\]\n\nend"),
        (
            "\\begin{table}\\caption{Of heats}\\begin{tabular}{cc} a & b \\\\ \\end{tabular}\\end{table} after",
            "Of heats\n\nafter",
        ),
        (r"\unknown[opt]{kept} \alsounknown word", "kept word"),
        ("text % comment\n\n% whole line\nmore", "text\n\nmore"),
    ] {
        assert_eq!(body(source), wanted, "{source}");
    }
}

#[test]
fn macros_expand_within_bounds_and_cycles_stay() {
    assert_eq!(
        text_of(&[(
            "a",
            r"\def\a{\b}\def\b{\a}\newcommand\eps{\epsilon}\begin{document}x $\eps x$ \a y\end{document}"
        )])
        .unwrap(),
        "x $\\epsilon x$ y"
    );
    // Each macro doubles the one before it: 2^40 times "lol".
    let mut laughs = String::from("\\def\\a{lol}");
    let names: Vec<String> = (0..40).map(|n| "b".repeat(n + 1)).collect();
    let mut before = "a".to_string();
    for name in &names {
        laughs += &format!("\\def\\{name}{{\\{before}\\{before}}}");
        before = name.clone();
    }
    laughs += &format!("\\begin{{document}}\\{before}\\end{{document}}");
    assert!(matches!(text_of(&[("a.tex", &laughs)]), Err(MarkupError::TooLarge { .. })));
}

#[test]
fn what_is_no_document_or_too_deep_is_refused_and_files_that_read_each_other_end() {
    assert!(matches!(text_of(&[("a.tex", "no document")]), Err(MarkupError::NoDocument(_))));
    assert!(matches!(text_of(&[]), Err(MarkupError::NoDocument(_))));
    let deep = format!("\\begin{{document}}{}x", "{".repeat(100_000));
    assert!(matches!(text_of(&[("a.tex", &deep)]), Err(MarkupError::TooDeep { .. })));
    let text = text_of(&[
        ("a.tex", "\\begin{document}one \\input{b} two \\input{../../etc/passwd}\\end{document}"),
        ("b.tex", "three \\input{a} \\input b four"),
    ]);
    assert_eq!(text.unwrap(), "one three four two");
    // The main file is the one that no other reads.
    let text = text_of(&[
        ("supplement.tex", "\\begin{document}long supplement, long supplement\\end{document}"),
        ("main.tex", "\\begin{document}main \\subfile{supplement}\\end{document}"),
    ]);
    assert!(text.unwrap().starts_with("main"));
}

#[test]
fn damaged_sources_cost_linear_time() {
    for piece in [
        "\\begin{",
        "\\begin{equation}",
        "$",
        "$$ \n",
        "\\[",
        "{",
        "\\x[",
        "\\input{",
        "\\def\\a",
        "\\verb|",
        "\\'",
        "%\n",
        "\\iffalse",
        "\\ifnum",
        "\\ifx\\a",
        "\\iftrue\\else",
        "\\ifcase 9\\or",
        "\\ifthenelse{",
        "\\ifthenelse{\\equal{a}{b}}{",
        "\\ifabc{x}{y}",
        "\\newif\\ifa\\atrue\\ifa",
    ] {
        let source = format!("\\begin{{document}}{}", piece.repeat(200_000));
        let _ = text_of(&[("a.tex", &source)]);
    }
}

#[test]
fn of_a_conditional_one_branch_stays_and_its_condition_goes() {
    for (source, wanted) in [
        (
            r"Seen one. \if 0 Old words of the draft. \fi Seen two. \iftrue Shown. \else Notshown. \fi Seen three.",
            "Seen one. Seen two. Shown. Seen three.",
        ),
        (r"A \if 0O no\else yes\fi. \if aa same\fi", "A yes. same"),
        (r"\def\mode{d}\if\mode d draft\else final\fi", "draft"),
        (r"\iffalse a \iftrue b \else c \fi d \else e \iffalse f \fi g\fi h", "e gh"),
        (r"\newif\ifdraft A \ifdraft no\else yes\fi, \drafttrue\ifdraft now\else no\fi.", "A yes, now."),
        (r"\let\ifdraft\iffalse A \ifdraft b \fi c", "A c"),
        (r"\let\ifdraft=\iftrue A \ifdraft b \fi c", "A b c"),
        (r"\ifnum 3>2 more\else less\fi, \ifnum\pdfstrcmp{a}{a}=0 same\else other\fi", "more, same"),
        (
            r"\newcount\level \level=4 \ifnum\level<5 low\fi \advance\level by 3 \ifnum\level<5 low\else high\fi",
            "lowhigh",
        ),
        (r"\newcounter{n}\setcounter{n}{7}\ifodd\value{n} odd\else even\fi", "odd"),
        (r"\ifdim 1in>2cm wide\else narrow\fi", "wide"),
        (r"\ifdim\textwidth>10cm wide\else narrow\fi.", "wide."),
        (
            r"\def\n{2}\ifcase\n zero\or one\or two\else many\fi, \ifcase 9 zero\or one\else many\fi",
            "two, many",
        ),
        (r"\ifcase 0 zero\or one\fi", "zero"),
        (r"\ifx\undefinedone\undefined new\else old\fi", "new"),
        (r"\def\a{x}\def\b{x}\def\c{y}\ifx\a\b same\fi \ifx\a\c same\else other\fi", "sameother"),
        (r"\newcommand{\x}{}\ifx\x\empty empty\else full\fi", "empty"),
        (r"\ifdefined\nosuchthing a\else b\fi \newcommand{\y}{1}\ifdefined\y c\else d\fi", "bc"),
        (r"\expandafter\ifx\csname nosuch\endcsname\relax none\else some\fi", "none"),
        (r"\unless\ifnum 1=1 no\else yes\fi", "yes"),
        // Of unknown switches and tests the first branch stays.
        (r"\ifCLASSOPTIONpeerreview one\else two\fi three", "onethree"),
        (r"\ifnum\lastpenalty<3 one \else two \fi three", "one three"),
        // Branches in braces.
        (r"\ifthenelse{\equal{a}{b}}{no}{yes} end", "yes end"),
        (
            r"\newboolean{long}\setboolean{long}{true}\ifthenelse{\boolean{long}}{The \textbf{long} one}{short}.",
            "The long one.",
        ),
        (r"\ifthenelse{\NOT 1>2 \AND \( \isodd{3} \OR 2=3 \)}{yes}{no}", "yes"),
        (r"\newtoggle{x}\toggletrue{x}\iftoggle{x}{on \iffalse no\fi}{off}!", "on !"),
        (r"\ifdefempty{\z}{a}{b} \IfFileExists{f.sty}{there}{not}", "a there"),
        (r"\ifdraft{\textcolor{red}{one}}{two} three", "one three"),
        // In macros, also with arguments.
        (
            r"\newif\ifnotes\newcommand{\note}[1]{\ifnotes [#1]\fi}A\note{hidden} b\notestrue\note{shown}.",
            "A b[shown].",
        ),
        (r"\newcommand{\hide}{\iffalse}A \hide b \fi c", "A c"),
        (
            r"\newcommand{\who}[2][nobody]{\ifx\relax#1\relax\else #1 and #2\fi}\who[we]{they}, \who{x}",
            "we and they, nobody and x",
        ),
        (
            r"\def\eps{\ifmmode\epsilon\else$\epsilon$\fi} Small \eps{} and $2\eps + 1$.",
            "Small $\\epsilon$ and $2\\epsilon+ 1$.",
        ),
        (r"\iftrue\newcommand{\v}{one}\else\newcommand{\v}{two}\fi \v", "one"),
        // Comments as environments.
        (r"a \begin{comment} \iftrue x \end{comment}b \excludecomment{old}\begin{old}y\end{old}c", "a b c"),
        // No conditionals.
        (r"$a \iff b$ and \verb|\iffalse| and \else x", "$a \\iff b$ and \\iffalse and x"),
        // Damaged ones leave their text.
        (r"a \iffalse b", "a b"),
        (r"a \fi b \ifnum 3 c", "a b c"),
    ] {
        assert_eq!(body(source), wanted, "{source}");
    }
    let preamble = r"\documentclass{article}\makeatletter\newif\if@anon\@anontrue\def\@x{y}
\newcommand{\names}{\if@anon Anonymous\else Jane Doe\fi}\makeatother\begin{document}By \names. A.\@ Next.\end{document}";
    assert_eq!(text_of(&[("a.tex", preamble)]).unwrap(), "By Anonymous. A. Next.");
    // Expansions that double end.
    let doubling = r"\def\a{\iftrue\a\a\fi}\begin{document}x \a y\end{document}";
    assert_eq!(text_of(&[("a.tex", doubling)]).unwrap(), "x y");
}
