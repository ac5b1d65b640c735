"""Makes the pages of made/ and their gold: python golden/extract/make.py

Each page follows the markup habits of a kind of site (themes, forums, shops, wikis, hand-written tables, broken
markup) with sentences from small grammars in nine languages. `lists-made.json` holds for each page sentences that
belong to its main text (`with`) and sentences that do not (`without`). Needs Python 3.11 only.
"""
import html
import json
import os
import random

HERE = os.path.dirname(os.path.abspath(__file__))

# Subject, verb, object, place and time of each language; written for this file.
GRAMMAR = {
    "en": ("The old miller|My neighbour|A young engineer|The harbour master|Our teacher|The night nurse|Every second baker|The council",
           "repaired|described|measured|forgot|painted|sold|carried|defended", "the wooden bridge|three copper kettles|a map of the valley|the last ferry|her grandmother's loom|the weather station|a box of letters|the longest table",
           "behind the station|near the northern gate|in a quiet village|on the wet market square|above the river|beside the chapel", "before the first snow fell|while the band was playing|after a long argument about money|as soon as the tide turned|without asking anybody", " ", "."),
    "de": ("Der alte Müller|Meine Nachbarin|Ein junger Ingenieur|Die Hafenmeisterin|Unser Lehrer|Die Nachtschwester|Jeder zweite Bäcker|Der Gemeinderat",
           "reparierte|beschrieb|vermaß|vergaß|bemalte|verkaufte|trug|verteidigte", "die Holzbrücke|drei kupferne Kessel|eine Karte des Tals|die letzte Fähre|den Webstuhl der Großmutter|die Wetterwarte|eine Kiste voller Briefe|den längsten Tisch",
           "hinter dem Bahnhof|am nördlichen Tor|in einem stillen Dorf|auf dem nassen Marktplatz|oberhalb des Flusses|neben der Kapelle", "bevor der erste Schnee fiel|während die Kapelle spielte|nach langem Streit um das Geld|sobald die Flut kam|ohne jemanden zu fragen", " ", "."),
    "fr": ("Le vieux meunier|Ma voisine|Une jeune ingénieure|Le maître du port|Notre professeur|L'infirmière de nuit|Un boulanger sur deux|Le conseil municipal",
           "réparait|décrivait|mesurait|oubliait|peignait|vendait|portait|défendait", "le pont de bois|trois bouilloires de cuivre|une carte de la vallée|le dernier bac|le métier de sa grand-mère|la station météo|une boîte de lettres|la plus longue table",
           "derrière la gare|près de la porte du nord|dans un village tranquille|sur la place mouillée|au-dessus de la rivière|à côté de la chapelle", "avant la première neige|pendant que l'orchestre jouait|après une longue dispute|dès que la marée changeait|sans demander à personne", " ", "."),
    "es": ("El viejo molinero|Mi vecina|Una joven ingeniera|El capitán del puerto|Nuestro maestro|La enfermera de noche|Uno de cada dos panaderos|El ayuntamiento",
           "reparó|describió|midió|olvidó|pintó|vendió|llevó|defendió", "el puente de madera|tres teteras de cobre|un mapa del valle|el último barco|el telar de su abuela|la estación del tiempo|una caja de cartas|la mesa más larga",
           "detrás de la estación|cerca de la puerta norte|en un pueblo tranquilo|en la plaza mojada|encima del río|junto a la capilla", "antes de la primera nieve|mientras tocaba la banda|tras una larga discusión|cuando cambió la marea|sin preguntar a nadie", " ", "."),
    "ru": ("Старый мельник|Моя соседка|Молодой инженер|Начальник порта|Наш учитель|Ночная сестра|Каждый второй пекарь|Городской совет",
           "починил|описал|измерил|забыл|раскрасил|продал|отнёс|защищал", "деревянный мост|три медных чайника|карту долины|последний паром|бабушкин станок|метеостанцию|ящик писем|самый длинный стол",
           "за вокзалом|у северных ворот|в тихой деревне|на мокрой площади|над рекой|рядом с часовней", "до первого снега|пока играл оркестр|после долгого спора о деньгах|как только начался прилив|никого не спросив", " ", "."),
    "ar": ("الطحان العجوز|جارتي القديمة|المهندس الشاب|رئيس الميناء|معلم المدرسة|ممرضة الليل|خباز المدينة|مجلس البلدة",
           "أصلح|وصف|قاس|نسي|دهن|باع|حمل|حمى", "الجسر الخشبي|ثلاث غلايات من النحاس|خريطة الوادي|العبارة الأخيرة|نول الجدة|محطة الطقس|صندوق الرسائل|أطول طاولة",
           "خلف المحطة|قرب الباب الشمالي|في قرية هادئة|في ساحة السوق|فوق النهر|بجانب المصلى", "قبل أول ثلج|بينما كانت الفرقة تعزف|بعد جدال طويل|عندما تغير المد|دون أن يسأل أحدا", " ", "."),
    "ja": ("年老いた粉屋は|隣に住む人は|若い技師は|港の主任は|私たちの先生は|夜勤の看護師は|町のパン屋は|村の議会は",
           "を修理した|を詳しく記した|を測った|を忘れた|を塗り直した|を売った|を運んだ|を守った", "木の橋|三つの銅のやかん|谷の地図|最後の渡し船|祖母の織機|気象台|手紙の箱|一番長い机",
           "駅の裏で|北の門の近くで|静かな村で|濡れた広場で|川の上で|礼拝堂の隣で", "初雪が降る前に|楽団が演奏している間に|長い議論の後に|潮が変わるとすぐに|誰にも聞かずに", "", "。"),
    "zh": ("老磨坊主|我的邻居|年轻的工程师|港口主任|我们的老师|夜班护士|镇上的面包师|村里的议会",
           "修好了|描述了|测量了|忘记了|粉刷了|卖掉了|搬走了|保护了", "那座木桥|三只铜壶|山谷的地图|最后一班渡船|祖母的织机|气象站|一箱旧信|最长的桌子",
           "在车站后面|在北门附近|在安静的村庄|在潮湿的广场|在河的上游|在教堂旁边", "在第一场雪之前|乐队演奏的时候|经过长时间的争论|潮水一变|没有问任何人", "", "。"),
    "ko": ("늙은 방앗간 주인은|옆집 사람은|젊은 기술자는|항구 책임자는|우리 선생님은|밤 간호사는|마을의 제빵사는|마을 의회는",
           "고쳤다|자세히 적었다|재었다|잊었다|칠했다|팔았다|옮겼다|지켰다", "나무다리를|구리 주전자 세 개를|골짜기 지도를|마지막 나룻배를|할머니의 베틀을|기상 관측소를|편지 상자를|가장 긴 탁자를",
           "역 뒤에서|북문 근처에서|조용한 마을에서|젖은 광장에서|강 위에서|예배당 옆에서", "첫눈이 오기 전에|악단이 연주하는 동안|긴 말다툼 끝에|물때가 바뀌자마자|아무에게도 묻지 않고", " ", "."),
}
# Subject, verb and object order.
VERB_LAST = {"ja", "ko"}
PAGES, LISTS = {}, {}


class Writer:
    """Sentences of one page, each used once, and its gold."""

    def __init__(self, name, language="en"):
        self.random, self.name, self.language = random.Random(name), name, language
        self.used, self.wanted, self.unwanted = set(), [], []

    def sentence(self):
        parts = [p.split("|") for p in GRAMMAR[self.language][:5]]
        space, stop = GRAMMAR[self.language][5:]
        while True:
            subject, verb, thing, place, when = (self.random.choice(p) for p in parts)
            order = [subject, when, place, thing, verb] if self.language in VERB_LAST else [subject, verb, thing, place, when]
            if self.language == "ja":
                order = [subject, when, place, thing + verb]
            said = space.join(order) + stop
            if said not in self.used:
                self.used.add(said)
                return said

    def text(self, sentences):
        return (" " if GRAMMAR[self.language][5] else "").join(self.sentence() for _ in range(sentences))

    def good(self, sentences=3):
        """A paragraph of the main text."""
        said = [self.sentence() for _ in range(sentences)]
        self.wanted.append(self.random.choice(said))
        return (" " if GRAMMAR[self.language][5] else "").join(said)

    def bad(self, sentences=2):
        """A paragraph that is no part of the main text."""
        said = [self.sentence() for _ in range(sentences)]
        self.unwanted.append(self.random.choice(said))
        return (" " if GRAMMAR[self.language][5] else "").join(said)

    def title(self):
        return self.sentence().rstrip(".。")

    def paragraphs(self, count, sentences=3):
        return "\n".join(f"<p>{self.good(sentences)}</p>" for _ in range(count))

    def links(self, count, tag="li"):
        return "".join(f'<{tag}><a href="/{i}">{self.title()[:40]}</a></{tag}>' for i in range(count))

    def comments(self, count, kind="li", name="comment", sentences=3):
        one = lambda: f'<{kind} class="{name}"><div class="comment-author vcard">{self.title()[:12]}</div><p>{self.bad(sentences)}</p><a href="#">Reply</a></{kind}>'
        return "".join(one() for _ in range(count))

    def nav(self):
        return f'<nav><ul>{self.links(6)}</ul></nav>'

    def page(self, body, head="", html_attributes=""):
        language = self.language
        PAGES[self.name] = (f'<!DOCTYPE html>\n<html lang="{language}"{html_attributes}><head><meta charset="utf-8">'
                            f'<title>{self.title()}</title>{head}</head>\n{body}\n</html>\n')
        spread = lambda l, n: l if len(l) <= n else [l[round(i * (len(l) - 1) / (n - 1))] for i in range(n)]
        LISTS[self.name] = {"with": spread(self.wanted, 5), "without": spread(self.unwanted, 5)}


FOOTER = '<footer><p>Copyright 2026 Example. <a href="/p">Privacy</a> <a href="/c">Contact</a></p></footer>'


def wrapped(name, wrapper, language="en", paragraphs=5, comments=6, sentences=3, between="", tag="div", id_=""):
    """A heading and paragraphs in an element of a misleading name; comments outside of it."""
    w = Writer(name, language)
    identifier = f' id="{id_}"' if id_ else ""
    w.page(f'<body><div id="header"><a href="/">Home</a></div>{w.nav()}\n<section class="content"><h1>{w.title()}</h1>{between}'
           f'<{tag}{identifier} class="{wrapper}">\n{w.paragraphs(paragraphs, sentences)}\n</{tag}></section>'
           + (f'<div id="comments"><h3>Comments</h3><ol class="commentlist">{w.comments(comments)}</ol></div>' if comments else "")
           + f'{FOOTER}</body>')


def named():
    wrappers = [
        ("share", "entry themeform share"), ("sidebar", "l-main with-left-sidebar@xl"), ("promoted", "node node-promoted node-full"),
        ("related", "related-content-layout row"), ("comment", "comment-piece opinion"), ("footer", "sticky-footer-wrap"),
        ("nav", "has-sub-nav page-nav-top"), ("ad", "ad-free-zone wide"), ("banner", "below-banner story"), ("popup", "popup-gallery text"),
        ("social", "post social-enabled"), ("author", "author-page vcard"), ("meta", "post-meta-visible article"), ("teaser", "teaser-off full"),
        ("tags", "post tags-news tag-ads"), ("newsletter", "newsletter-issue"), ("press", "press-release"), ("search", "search-hit-page"),
        ("login", "login-free"), ("menu", "menu-open-left panel"), ("widget", "so-widget-text panel-grid"), ("cookie", "recipe cookies"),
        ("toolbar", "no-toolbar"), ("sponsor", "sponsored-off"), ("popular", "popular-science"), ("donate", "donate-story"),
        ("subscribe", "subscription-free-content"), ("modal", "modal-content dialog"), ("ticker", "ticker-page"), ("recommended", "recommended reading"),
    ]
    languages = ["en", "de", "fr", "es", "ru", "ja", "zh", "ar", "ko"]
    for i, (name, wrapper) in enumerate(wrappers):
        # Every third has more comments than text.
        wrapped(f"named-{name}", wrapper, languages[i % 9 if i % 2 else 0], [5, 3, 2][i % 3], [6, 0, 9][i % 3])
    wrapped("named-id-sidebar", "", id_="content-sidebar-wrap")
    wrapped("named-id-comment", "", id_="ctl00_cphMain_commentDetail", comments=8)
    wrapped("named-section", "share-this", tag="section", comments=10, paragraphs=3)
    w = Writer("named-nested", "de")
    w.page(f'<body class="sidebar-right">{w.nav()}<div class="widget-area-wrap social"><div class="share-wrap"><div class="promo-inner">'
           f'<h1>{w.title()}</h1>{w.paragraphs(4)}<div class="share"><p>{w.bad(1)} <a href="/f">Facebook</a></p></div></div></div></div>'
           f'<div class="sidebar widget"><h4>Archiv</h4><p>{w.bad(2)}</p></div><div class="comments">{w.comments(8, "div")}</div>{FOOTER}</body>')
    w = Writer("named-many", "en")  # each paragraph in an element of a name
    w.page(f'<body>{w.nav()}<div class="wrap"><h1>{w.title()}</h1>' + "".join(f'<div class="widget widget-text"><p>{w.good()}</p></div>' for _ in range(6))
           + f'</div><div id="disqus_thread">{w.comments(4, "div")}</div>{FOOTER}</body>')
    w = Writer("named-short", "fr")  # one paragraph and many comments
    w.page(f'<body>{w.nav()}<div class="post social"><h2>{w.title()}</h2><div class="share-content"><p>{w.good(1)}</p></div></div>'
           f'<div id="comments">{w.comments(12, "div")}</div>{FOOTER}</body>')
    w = Writer("named-real-parts", "en")  # names that are right, on long parts
    w.page(f'<body>{w.nav()}<div class="wrap"><h1>{w.title()}</h1><div class="story">{w.paragraphs(4)}</div>'
           f'<div class="author-bio"><p>{w.bad(2)}</p></div><div class="related">' + "".join(f'<div class="item"><h4><a href="/{i}">{w.title()}</a></h4><p>{w.bad(2)}</p></div>' for i in range(4))
           + f'</div><div class="newsletter"><p>{w.bad(1)}</p></div></div><div class="sidebar"><p>{w.bad(3)}</p></div>{FOOTER}</body>')


def themes():
    for i, language in enumerate(["en", "de", "ru"]):
        w = Writer(f"theme-wordpress-{language}", language)
        w.page(f'<body class="post-template-default single single-post has-sidebar"><div id="page" class="hfeed site"><header id="masthead" class="site-header">'
               f'<p class="site-title"><a href="/">Blog</a></p></header>{w.nav()}<div id="content" class="site-content"><div id="primary" class="content-area"><main id="main">'
               f'<article id="post-{i}" class="post type-post status-publish hentry category-social tag-share"><header class="entry-header"><h1 class="entry-title">{w.title()}</h1></header>'
               f'<div class="entry-content">{w.paragraphs(4 + i)}<blockquote><p>{w.good(2)}</p></blockquote><div class="sharedaddy"><h3>Share this:</h3><ul><li><a href="/t">Twitter</a></li></ul></div></div>'
               f'<footer class="entry-footer">Posted in <a href="/c">News</a></footer></article><nav class="post-navigation"><a href="/a">{w.title()}</a></nav>'
               f'<div id="comments" class="comments-area"><ol class="comment-list">{w.comments(5)}</ol></div></main></div>'
               f'<aside id="secondary" class="widget-area"><section class="widget"><h2>Recent</h2><ul>{w.links(5)}</ul></section><section class="widget widget_text"><p>{w.bad(2)}</p></section></aside></div>{FOOTER}</div></body>')
        w = Writer(f"theme-drupal-{language}", language)
        w.page(f'<body class="html not-front one-sidebar sidebar-first page-node"><div id="page-wrapper"><div id="header"><div class="section">{w.nav()}</div></div><div id="main-wrapper"><div id="sidebar-first" class="column sidebar"><div class="block block-menu"><ul>{w.links(5)}</ul></div></div>'
               f'<div id="content" class="column"><h1 id="page-title">{w.title()}</h1><div class="region region-content"><div id="block-system-main" class="block"><div id="node-7" class="node node-article node-promoted clearfix"><div class="content"><div class="field field-name-body"><div class="field-items"><div class="field-item even" property="content:encoded">'
               f'{w.paragraphs(3 + i)}</div></div></div></div><ul class="links inline"><li><a href="/l">Log in to post comments</a></li></ul><div id="comments" class="comment-wrapper">{w.comments(4 * i, "div")}</div></div></div></div></div></div></div>{FOOTER}</body>')
        w = Writer(f"theme-joomla-{language}", language)
        w.page(f'<body><div id="all"><div id="back"><div id="header"><div class="logoheader">{w.links(3, "span")}</div></div><div id="contentarea2"><div class="left1 leftbigger" id="nav"><div class="moduletable_menu"><h3>Menu</h3><ul class="menu">{w.links(6)}</ul></div></div>'
               f'<div id="wrapper2"><div id="main"><div class="item-page"><h2>{w.title()}</h2><ul class="actions"><li>Print</li></ul><dl class="article-info"><dd class="published">May 2026</dd></dl>{w.paragraphs(3)}</div></div></div>'
               f'<div id="right"><div class="moduletable"><h3>News</h3><p>{w.bad(2)}</p></div></div></div></div></div></body>')
        w = Writer(f"theme-blogger-{language}", language)
        w.page(f'<body><div class="body-fauxcolumns"></div><div class="content"><div class="content-inner"><header><h1 class="title">Blog</h1></header><div class="main-outer"><div class="column-center-outer"><div class="main section" id="main"><div class="widget Blog" id="Blog1"><div class="blog-posts hfeed"><div class="post hentry"><h3 class="post-title entry-title">{w.title()}</h3>'
               f'<div class="post-body entry-content">' + "<br><br>".join(w.good() for _ in range(3 + i)) + f'</div><div class="post-footer"><span class="post-author vcard">Posted by A. Writer</span></div></div></div><div class="comments" id="comments"><h4>Comments:</h4><dl>'
               + "".join(f'<dd class="comment-body"><p>{w.bad(2)}</p></dd>' for _ in range(3)) + f'</dl></div></div></div></div><div class="column-right-outer"><div class="sidebar section"><div class="widget BlogArchive"><ul>{w.links(8)}</ul></div><div class="widget Text"><div class="widget-content">{w.bad(2)}</div></div></div></div></div></div></div></body>')


def sites():
    for language in ("en", "ja", "ar"):
        w = Writer(f"news-{language}", language)
        w.page(f'<body>{w.nav()}<div class="cookie-consent" role="dialog"><p>{w.bad(3)}</p></div><div class="container"><div class="headline"><h1>{w.title()}</h1><p class="lead">{w.good(1)}</p></div>'
               f'<div class="col-8"><figure><img src="a.jpg" alt="x"></figure>{w.paragraphs(3)}<div class="inline-related"><h4>More</h4><ul>{w.links(3)}</ul></div>{w.paragraphs(2)}<h2>{w.title()}</h2>{w.paragraphs(2)}</div>'
               f'<div class="col-4">' + "".join(f'<div class="card"><a href="/{i}"><h3>{w.title()}</h3><p>{w.bad(1)}</p></a></div>' for i in range(5)) + f'</div></div>{FOOTER}</body>')
        w = Writer(f"forum-{language}", language)
        w.page(f'<body><div id="nav-breadcrumbs"><a href="/">Board</a></div><div id="page-body"><h2 class="topic-title">{w.title()}</h2>' + "".join(
               f'<div id="p{i}" class="post bg{i % 2}"><div class="inner"><dl class="postprofile"><dt>user{i}</dt><dd>Posts: {i * 7}</dd></dl><div class="postbody"><div class="content">{w.good(3)}</div><div class="signature">{w.bad(1) if not i else ""}</div></div></div></div>' for i in range(4))
               + f'</div>{FOOTER}</body>')
        w = Writer(f"front-{language}", language)  # a front page of short posts
        w.page(f'<body><div id="top">{w.links(4, "span")}</div><div id="blog">' + "".join(f'<div class="post"><h2><a href="/{i}">{w.title()}</a></h2><div class="post-text"><p>{w.good(2)}</p></div><p class="post-info"><a href="/{i}#c">3 comments</a></p></div>' for i in range(5))
               + f'</div><div id="side"><h3>Links</h3><ul>{w.links(8)}</ul></div></body>')
    for language in ("en", "zh", "ko", "ru"):
        w = Writer(f"wiki-{language}", language)
        w.page(f'<body class="mediawiki"><div id="content" class="mw-body" role="main"><h1 id="firstHeading">{w.title()}</h1><div id="bodyContent"><div id="siteSub">From a wiki</div><div id="mw-content-text"><div class="mw-parser-output"><table class="infobox"><tr><th>Founded</th><td>1890</td></tr><tr><th>Area</th><td>12 km</td></tr></table>'
               f'<p>{w.good(4)}</p><div id="toc" class="toc"><ul><li><a href="#a">{w.title()}</a></li></ul></div><h2>{w.title()}</h2>{w.paragraphs(3)}<ul><li>{w.good(1)}</li><li>{w.good(1)}</li></ul><div class="navbox"><table><tr><td>{w.links(9, "span")}</td></tr></table></div></div></div><div id="catlinks">Categories: {w.links(4, "span")}</div></div></div>'
               f'<div id="mw-navigation"><h2>Navigation menu</h2><ul>{w.links(9)}</ul></div><div id="footer"><p>{w.bad(1)}</p></div></body>')
        w = Writer(f"tables-{language}", language)  # hand-written, tables for layout
        w.page(f'<body bgcolor=white><table width=100% border=0><tr><td colspan=2><font size=6>{w.title()}</font></td></tr><tr><td width=160 valign=top>' + "<br>".join(f'<a href={i}.htm>{w.title()[:24]}</a>' for i in range(7))
               + f'</td><td valign=top><font face=Arial>' + "<br><br>\n".join(w.good(3) for _ in range(4)) + f'</font><p><center><a href=top.htm>Home</a> | <a href=mail.htm>Mail</a></center></td></tr></table></body>')
    for language in ("en", "fr", "es"):
        w = Writer(f"recipe-{language}", language)
        w.page(f'<body>{w.nav()}<div class="recipe hrecipe"><h1 class="fn">{w.title()}</h1><p>{w.good(2)}</p><ul class="ingredients">' + "".join(f'<li class="ingredient">{n} g {x}</li>' for n, x in [(200, "flour"), (3, "salt"), (90, "butter")])
               + f'</ul><ol class="instructions">' + "".join(f'<li>{w.good(1)}</li>' for _ in range(5)) + f'</ol></div><div class="reviews comments">{w.comments(4, "div", "review comment")}</div><div class="you-may-also-like related"><ul>{w.links(5)}</ul><p>{w.bad(1)}</p></div>{FOOTER}</body>')
        w = Writer(f"shop-{language}", language)
        w.page(f'<body>{w.nav()}<div id="product"><h1>{w.title()}</h1><span class="price">12,90</span><form><button>Add to basket</button></form><div class="tabs"><ul class="nav nav-tabs"><li><a href="#d">Description</a></li></ul><div class="tab-content"><div id="d" class="tab-pane active"><p>{w.good(3)}</p><ul><li>{w.good(1)}</li><li>{w.good(1)}</li></ul></div></div></div></div>'
               f'<div class="upsell">' + "".join(f'<div class="product"><a href="/{i}">{w.title()}</a> <span>9,90</span></div>' for i in range(6)) + f'</div><div class="newsletter-signup"><p>{w.bad(1)}</p></div>{FOOTER}</body>')
        w = Writer(f"faq-{language}", language)
        w.page(f'<body>{w.nav()}<div class="page"><h1>{w.title()}</h1>' + "".join(f'<details><summary>{w.title()}?</summary><p>{w.good(2)}</p></details>' for _ in range(5)) + f'</div><div class="popup"><p>{w.bad(1)}</p></div>{FOOTER}</body>')


def short():
    for language in ("en", "de", "zh", "es"):
        w = Writer(f"short-notice-{language}", language)
        w.page(f'<body>{w.nav()}<div id="content"><h2>{w.title()}</h2><p>{w.good(1)}</p></div>{FOOTER}</body>')
        w = Writer(f"short-lines-{language}", language)  # lines of less than a paragraph each
        w.page(f'<body>{w.nav()}<div id="main"><h1>{w.title()}</h1>' + "".join(f'<div>{w.good(1)[:70]}</div>' for _ in range(6)) + f'</div><div id="side"><ul>{w.links(5)}</ul></div></body>')
        w.wanted[:] = [s[:70] for s in w.wanted]
        LISTS[w.name]["with"] = w.wanted[:5]
    for language in ("en", "ru"):
        w = Writer(f"poem-{language}", language)
        lines = [w.good(1) for _ in range(10)]
        w.page(f'<body>{w.nav()}<div class="poem"><h2>{w.title()}</h2><p>' + "<br>\n".join(lines[:5]) + "</p><p>" + "<br>\n".join(lines[5:]) + f'</p></div><div class="sidebar"><p>{w.bad(2)}</p></div></body>')
        w = Writer(f"list-{language}", language)
        w.page(f'<body>{w.nav()}<div class="listicle"><h1>{w.title()}</h1><ol>' + "".join(f'<li><b>{w.title()}</b> {w.good(2)}</li>' for _ in range(7)) + f'</ol></div><div class="outbrain"><p>{w.bad(1)}</p><ul>{w.links(5)}</ul></div></body>')


def broken():
    for language in ("en", "de"):
        w = Writer(f"broken-nav-{language}", language)  # a nav that is never closed
        w.page(f'<body><nav><ul>{w.links(5)}</ul>\n<div class="text"><h1>{w.title()}</h1>{w.paragraphs(4)}</div></body>')
        w = Writer(f"broken-header-{language}", language)
        w.page(f'<body><header><div id="logo"><a href="/">Logo</a></div>\n<div class="page"><h1>{w.title()}</h1>{w.paragraphs(4)}</div><div id="comments">{w.comments(7, "div")}</div></body>')
        w = Writer(f"broken-aside-{language}", language)  # the text is all there is, in elements for what is around
        w.page(f'<body><aside class="main-column"><h1>{w.title()}</h1>{w.paragraphs(3)}</aside><footer>{w.links(4, "span")}</footer></body>')
        w = Writer(f"script-shown-{language}", language)  # shown by a script
        w.page(f'<body style="visibility:hidden" onload="show()">{w.nav()}<div class="page"><h1>{w.title()}</h1>{w.paragraphs(4)}</div>{FOOTER}</body>')
        w = Writer(f"script-faded-{language}", language)
        w.page(f'<body><div id="app" aria-hidden="true" style="display: none"><div class="page"><h1>{w.title()}</h1>{w.paragraphs(3)}</div></div><div class="loader">Loading</div></body>')
        w = Writer(f"plain-breaks-{language}", language)
        w.page("<body>" + "<br><br>".join(w.good(3) for _ in range(4)) + '<hr><a href="/">Back</a></body>')
        w = Writer(f"form-page-{language}", language)
        w.page(f'<body><form id="aspnetForm" action="x"><div id="ctl00_search" class="search"><input name=q></div><div id="ctl00_banner"><a href="/">Home</a></div><div id="ctl00_body"><span id="lblTitle"><b>{w.title()}</b></span><div id="ctl00_news_share">' + "<br/><br/>".join(w.good(3) for _ in range(3)) + f'</div></div><div id="ctl00_footer">{w.bad(1)}</div></form></body>')
        w = Writer(f"dialog-{language}", language)
        w.page(f'<body><div class="overlay" role="dialog" aria-modal="true"><div class="modal-dialog"><div class="modal-content"><h1>{w.title()}</h1><div class="modal-body">{w.paragraphs(3)}</div></div></div></div><div id="cookie-banner"><p>{w.bad(2)}</p></div></body>')


if __name__ == "__main__":
    for make in (named, themes, sites, short, broken):
        make()
    folder = os.path.join(HERE, "made")
    os.makedirs(folder, exist_ok=True)
    for old in os.listdir(folder):
        os.remove(os.path.join(folder, old))
    for name, page in PAGES.items():
        with open(os.path.join(folder, name + ".html"), "w", encoding="utf-8") as file:
            file.write(page)
    with open(os.path.join(HERE, "lists-made.json"), "w", encoding="utf-8") as file:
        json.dump(LISTS, file, ensure_ascii=False, indent=0)
        file.write("\n")
    print(len(PAGES), "pages", sum(len(p.encode()) for p in PAGES.values()), "bytes")
