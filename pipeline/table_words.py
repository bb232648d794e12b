"""What names of tables and columns tell, in a few languages."""

import difflib
import re
import unicodedata
from collections.abc import Iterable

_WORDS = {
    "user": "user uid reader member customer client person people viewer visitor account card "
    "reviewer buyer subscriber listener player student patron shopper kunde leser nutzer lecteur "
    "usager utilisateur usuario lector cliente 用户 读者 会员 客户 顾客 买家 学生 ユーザー 会員",
    "item": "item book movie film product article isbn sku asin song track album game show recipe "
    "course hotel restaurant good merchandise catalog catalogue buch produkt artikel livre produit "
    "libro producto 书 图书 商品 电影 影片 物品 产品 作品 歌曲 文章 課程 书籍",
    "rating": "rating rate star score grade mark overall liked bewertung stern sterne note "
    "evaluation valoracion puntuacion 评分 打分 评价 分数 星级 評価",
    "count": "count quantity qty plays views clicks amount times vote votes helpful upvotes likes "
    "anzahl 数量 次数 点赞 有用 票数 投票",
    "time": "time timestamp date day when datetime created updated at ts moment datum zeit tag "
    "jour fecha hora 时间 日期 时刻 日時",
    "title": "title name titel titre titulo nom nombre label headline 标题 书名 名称 片名 题名 "
    "品名 名 題名",
    "name": "name nom nombre label 名称 名",  # a title, if nothing is called one
    "maker": "author writer translator editor illustrator artist singer band composer actor cast "
    "director creator publisher press brand manufacturer maker seller vendor store shop company "
    "autor ubersetzer verlag hersteller marke auteur editeur marque editorial fabricante marca "
    "作者 作家 译者 著者 编者 出版社 出版者 品牌 厂商 导演 演员 歌手 店铺 商家 監督",
    "genre": "genre genres category categories kind type section subject topic tag tags shelf "
    "kategorie gattung categorie categoria genero 类别 类型 分类 种类 题材 ジャンル",
    "interaction": "rating interaction log event review order loan purchase click view play "
    "history visit checkout transaction borrowing bewertung 评分 记录 借阅 订单 行为 历史",
}
_KINDS = {kind: tuple(words.split()) for kind, words in _WORDS.items()}

_TITLE_ONLY = tuple(word for word in _KINDS["title"] if word not in _KINDS["name"])

_DOMAINS = {
    "book": "book isbn buch livre libro 书 图书 novel",
    "movie": "movie film 电影 影片 片名",
    "song": "song track music 歌曲 音乐",
    "game": "game 游戏",
    "article": "article news 文章 新闻",
    "recipe": "recipe 食谱",
    "course": "course 课程",
    "hotel": "hotel 酒店",
    "restaurant": "restaurant 餐厅",
    "product": "product sku asin merchandise produkt produit producto 商品 产品",
}

_ACCENT = re.compile("[\u0300-\u036f]")


def means(name: str, kind: str) -> bool:
    """Whether a name speaks of users, items, ratings, ...; see `_WORDS`."""
    return _has_word(name, _KINDS[kind])


def likeness_to_title(name: str) -> float:
    """Above 0 for what is called a title: most for `title`, less for `name`, `original_title`.

    0 for the name of who made an item, or of its genre.
    """
    if not means(name, "title") or means(name, "maker") or means(name, "genre"):
        return 0.0
    words = {*_KINDS["title"], *_KINDS["item"]}
    is_more = any(_without(word, words) for word in _split(name))
    is_name = means(name, "name") and not _has_word(name, _TITLE_ONLY)
    return 4.0 - 2 * is_more - is_name


def domain_of(*names: str) -> str | None:
    """What an item is called, by the first name that tells."""
    for name in names:
        for domain, words in _DOMAINS.items():
            if _has_word(name, words.split()):
                return domain
    return None


def likeness(one: str, other: str) -> float:
    """How alike two names are, from 0 to 1."""
    one, other = _plain(one), _plain(other)
    if one == other:
        return 1.0
    if min(len(one), len(other)) > 1 and (one in other or other in one):
        return 0.7
    return 0.5 * difflib.SequenceMatcher(None, one, other).ratio()


def words_of(name: str) -> list[str]:
    """The words of `userId` or `user_id` as they stand, small and without accents."""
    return _split(name)


def mentions(name: str, stems: Iterable[str]) -> bool:
    """Whether one of `stems` stands anywhere in a name, across its blanks and dashes too."""
    flat, as_is = "".join(_split(name)), "".join(name.lower().split())
    return any(stem in flat or stem in as_is for stem in stems)


def is_called_only(name: str, words: Iterable[str], beside: Iterable[str]) -> bool:
    """Whether a name is one of `words`, with nothing but `beside` and words for users."""
    own = set(_split(name)) - set(beside)
    rest = own - set(words)
    return rest != own and all(means(word, "user") for word in rest)


def _has_word(name: str, words: tuple[str, ...] | list[str]) -> bool:
    parts = _parts(name)
    flat = "".join(name.split())
    return any(word in parts if word.isascii() else word in flat for word in words)


def _parts(name: str) -> set[str]:
    """Words of `userId`, `user_id` and `users`, in the singular too."""
    words = _split(name)
    whole = {"".join(words)}
    ending = {word.removesuffix("s") for word in words}
    known = {word.removesuffix("id") for word in words if len(word) > 4}
    return {*words, *ending, *known, *whole}


def _split(name: str) -> list[str]:
    """Words as they stand, without accents."""
    name = _ACCENT.sub("", unicodedata.normalize("NFD", name))
    spaced = re.sub(r"([a-z0-9])([A-Z])", r"\1 \2", name)
    return re.findall(r"[^\W\d_]+", spaced.lower())


def _without(word: str, words: Iterable[str]) -> str:
    """What a word has beside some words: nothing if it is one, or is made of Chinese ones."""
    if word in words or word.removesuffix("s") in words:
        return ""
    for part in sorted(words, key=len, reverse=True):
        word = word if part.isascii() else word.replace(part, "")
    return word


def _plain(name: str) -> str:
    return "".join(re.findall(r"\w", name.lower())).replace("_", "")
