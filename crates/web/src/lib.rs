//! What the web is made of: WARC and WET records, HTML and its main text, encodings, URLs and lists of them.
