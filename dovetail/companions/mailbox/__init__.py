"""A mailbox: driver and party leave each other sealed letters in a place that both reach.

    PLACE/cards/shop                    shop's public key, signed with its certificate (keys.py)
    PLACE/mail/shop/bank.C.000004.1.q   bank's 4th request of conversation C to shop, 1st attempt
    PLACE/mail/bank/shop.C.000004.1.a   what answers it

A place is a folder (``folder.py``), or whatever else has the five methods of ``places.Place``. The
driver sends by ``sending.py``, the party answers by ``answering.py`` and remembers in
``journal.py``; what a letter is, and what of it a place can read, says ``letters.py``.

``dovetail relay`` carries letters between parties that reach it and not each other: it keeps them
until they are taken (``relay_store.py``) and lets in who has a certificate of its authority
(``relay_server.py``). It cannot open a letter; whoever runs it sees names, times, sizes.
"""
